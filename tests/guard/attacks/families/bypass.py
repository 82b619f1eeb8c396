"""The bypass, which exists for the runtime, reached by a subject."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import SANDBOX, Ground, attack, attacks_of


def bypass():
    from democrai_sandbox import process_guard_bypass_context

    return process_guard_bypass_context()


def read(ground: Ground) -> object:
    return open(ground.outside).read()


def by_with(ground: Ground) -> object:
    with bypass():
        return read(ground)


def by_hand(ground: Ground) -> object:
    context = bypass()
    type(context).__enter__(context)
    return read(ground)


def by_stack(ground: Ground) -> object:
    from contextlib import ExitStack

    with ExitStack() as stack:
        stack.enter_context(bypass())
        return read(ground)


def in_thread(ground: Ground) -> None:
    import threading

    thread = threading.Thread(target=lambda: ground.attempt(lambda: by_with(ground)))
    thread.start()
    thread.join()


def in_empty_context(ground: Ground) -> object:
    import contextvars

    return contextvars.Context().run(by_with, ground)


def with_forged_name(ground: Ground) -> object:
    """The caller claims to be a module of the guard itself."""
    source = (
        "from democrai_sandbox import process_guard_bypass_context\n"
        "with process_guard_bypass_context():\n"
        "    result = open(path).read()\n"
    )
    guard_file = getattr(sys.modules.get("democrai_sandbox.guard"), "__file__", "x")
    space = {"path": ground.outside, "__name__": "democrai_sandbox.guard", "__file__": guard_file}
    exec(compile(source, guard_file, "exec"), space)
    return space["result"]


def with_borrowed_code(ground: Ground) -> object:
    """The code object of a function of the guard is called with other globals."""
    import types

    import democrai_sandbox

    globals_of_ours = {"__builtins__": __builtins__, "open": lambda *_: read(ground)}
    for module in [module for name, module in sys.modules.items() if name.startswith("democrai_sandbox")]:
        for thing in list(vars(module).values()):
            code = getattr(thing, "__code__", None)
            if isinstance(code, types.CodeType) and code.co_freevars == ():
                try:
                    types.FunctionType(code, globals_of_ours)()
                except Exception:  # noqa: S110 - most of them need arguments
                    pass
    del democrai_sandbox
    return read(ground)


attacks_of(
    {
        "with": by_with,
        "by_hand": by_hand,
        "in_thread": in_thread,
        "in_empty_context": in_empty_context,
        "with_forged_name": with_forged_name,
        "with_borrowed_code": with_borrowed_code,
    },
    "the bypass is opened by the subject: {}",
    expect=SANDBOX,
)


attack("the bypass is opened through an exit stack", expect=SANDBOX, unguarded="refused to everybody")(by_stack)


@attack("the bypass is opened by the subject in a coroutine", expect=SANDBOX)
async def by_async_with(ground: Ground) -> object:
    with bypass():
        return read(ground)


def hold_bypass(ground: Ground) -> None:
    ground.held.bypass = bypass()


@attack("a bypass that the host made is entered by the subject", expect=SANDBOX, prepare=hold_bypass)
def bypass_of_the_host(ground: Ground) -> object:
    with ground.held.bypass:
        return read(ground)


@attack("the host is inside a bypass when it enters the guard, and the subject leaves the guard for it", expect=SANDBOX)
def bypass_left_open(ground: Ground) -> object:
    context = bypass()
    try:
        context.__exit__(None, None, None)
    finally:
        ground.attempt(lambda: read(ground))
    return None


def safe_calls(thing: object, ground: Ground) -> None:
    """Call a thing in the ways that might switch something off."""
    thief = lambda *_, **__: ground.steal()
    for arguments in ((), (None,), (0,), (False,), (thief,), (None, thief), (thief, None), ("",), ((),), (None, None)):
        try:
            result = thing(*arguments)
        except BaseException:
            continue
        for name in ("__enter__", "close", "release", "run"):
            try:
                getattr(result, name)()
            except BaseException:  # noqa: S110 - anything may be refused
                pass
        ground.steal()


def every_callable(prefix: str, ground: Ground) -> None:
    for name, module in list(sys.modules.items()):
        if name == prefix or name.startswith(prefix + "."):
            for thing_name, thing in list(vars(module).items()):
                if callable(thing) and not thing_name.startswith("__") and "abort" not in thing_name:
                    safe_calls(thing, ground)


@attack("every function of the native core is called with whatever it takes", expect=SANDBOX)
def every_native_function(ground: Ground) -> object:
    every_callable("democrai_sandbox.guard._core", ground)
    return read(ground)


@attack("every function of the guard is called with whatever it takes", expect=SANDBOX)
def every_function(ground: Ground) -> object:
    every_callable("democrai_sandbox", ground)
    return read(ground)


@attack("every method of the objects that the native core hands out is called", expect=SANDBOX)
def every_native_object(ground: Ground) -> object:
    from contextvars import copy_context

    things = list(copy_context().values())
    try:
        from democrai_sandbox import current_guard, process_guard_context

        if current_guard() is not None:
            things += [current_guard(), process_guard_context(subject="x")]
    except ImportError:
        pass
    for thing in things:
        for name in dir(thing):
            if name not in {"__class__", "__init_subclass__", "__subclasshook__", "__reduce_ex__", "__reduce__"}:
                method = getattr(thing, name, None)
                if callable(method):
                    safe_calls(method, ground)
    return read(ground)


@attack("the native core is imported a second time under another name", expect=SANDBOX)
def second_core(ground: Ground) -> object:
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_file_location

    core = sys.modules.get("democrai_sandbox.guard._core")
    if core is not None:
        loader = ExtensionFileLoader("again._core", core.__file__)
        spec = spec_from_file_location("again._core", core.__file__, loader=loader)
        ground.attempt(lambda: setattr(ground.held, "core", module_from_spec(spec)))
        if hasattr(ground.held, "core"):
            sys.modules["again._core"] = ground.held.core
            every_callable("again._core", ground)
    return read(ground)


@attack("the function that gives the bypass is replaced for the runtime", expect=SANDBOX)
def bypass_replaced(ground: Ground) -> object:
    from contextlib import nullcontext

    import democrai_sandbox

    for module in [module for name, module in sys.modules.items() if name.startswith("democrai_sandbox")]:
        for name in list(vars(module)):
            if "bypass" in name:
                setattr(module, name, nullcontext)
    with democrai_sandbox.process_guard_bypass_context():
        return read(ground)


@attack("a variable of the environment is tried that might switch the guard off", expect=SANDBOX)
def switch_in_environment(ground: Ground) -> object:
    for name in ("SANDBOX", "SANDBOX_DISABLED", "NO_SANDBOX", "PYTHONSANDBOX"):
        os.environ[name] = "0"
    return read(ground)
