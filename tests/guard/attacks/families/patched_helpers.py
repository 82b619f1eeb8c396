"""Functions below the guard, replaced by the subject."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import BROKEN, FILES, PROCESS, SANDBOX, Denied, Ground, attack, attacks_of


def read(ground: Ground) -> object:
    return open(ground.outside).read()


@attack("the functions of os.path that resolve paths all answer with a path inside", expect=FILES)
def path_functions(ground: Ground) -> object:
    for name in ("realpath", "abspath", "normpath", "join", "commonpath", "dirname", "expanduser"):
        setattr(os.path, name, lambda *_, **__: f"{ground.inside}/own.txt")
    return read(ground)


@attack("os.fspath and os.fsdecode answer with a path inside", expect=FILES)
def fspath(ground: Ground) -> object:
    os.fspath = os.fsdecode = os.fsencode = lambda path: f"{ground.inside}/own.txt"
    return read(ground)


@attack("os.stat, os.readlink and os.getcwd are replaced", expect=FILES)
def os_functions(ground: Ground) -> object:
    kept = dict(vars(os))
    os.readlink = os.getcwd = lambda *_, **__: ground.inside
    os.lstat = os.stat = lambda *_, **__: None
    try:
        return read(ground)
    finally:
        for name in ("readlink", "getcwd", "lstat", "stat"):
            setattr(os, name, kept[name])


@attack("the builtins that checks are written with always say yes", expect=SANDBOX)
def builtin_functions(ground: Ground) -> object:
    import builtins

    kept = dict(vars(builtins))
    builtins.isinstance = builtins.issubclass = builtins.any = builtins.all = lambda *_: True
    builtins.PermissionError = ValueError
    try:
        return read(ground)
    finally:
        vars(builtins).update(kept)


@attack("contextvars offers another ContextVar", expect=FILES)
def context_variables(ground: Ground) -> object:
    import contextvars

    class Empty:
        def get(self, *_: object) -> None:
            return None

    contextvars.ContextVar = contextvars.copy_context = lambda *_, **__: Empty()
    return contextvars.Context().run(read, ground)


def thief(ground: Ground):
    """A replacement that says yes, and uses the moment in which it is called."""

    def stub(*_: object, **__: object) -> bool:
        ground.steal()
        return True

    return stub


def modules_of_the_guard() -> list[object]:
    return [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "democrai_sandbox"]


@attack("every function and class of the guard's own modules is replaced by one that says yes", expect=BROKEN)
def modules_replaced(ground: Ground) -> object:
    for module in modules_of_the_guard():
        for name in list(vars(module)):
            if not name.startswith("__"):
                try:
                    setattr(module, name, thief(ground))
                except Exception:  # noqa: S110 - a refusal is fine, the next name follows
                    pass
    return read(ground)


@attack("every method of every class of the guard's own modules is replaced by one that says yes", expect=BROKEN)
def methods_replaced(ground: Ground) -> object:
    for module in modules_of_the_guard():
        for thing in list(vars(module).values()):
            if isinstance(thing, type) and thing.__module__.startswith("democrai_sandbox"):
                for name in list(vars(thing)):
                    if not name.startswith("__"):
                        try:
                            setattr(thing, name, thief(ground))
                        except Exception:  # noqa: S110 - same reason
                            pass
    return read(ground)


@attack("the method that decides about access says yes in every class that has it", expect=BROKEN)
def decider_replaced(ground: Ground) -> object:
    for module in modules_of_the_guard():
        for thing in list(vars(module).values()):
            if isinstance(thing, type) and hasattr(thing, "decide"):
                try:
                    thing.decide = thief(ground)
                except Exception:  # noqa: S110 - same reason
                    pass
    return read(ground)


@attack("the error classes of the guard stop raising", expect=BROKEN)
def errors_replaced(ground: Ground) -> object:
    errors = sys.modules.get("democrai_sandbox.errors")
    for name in list(vars(errors)) if errors else []:
        thing = getattr(errors, name)
        if isinstance(thing, type) and issubclass(thing, BaseException):
            for method in ("__init__", "__new__"):
                try:
                    setattr(thing, method, lambda *_, **__: None)
                except Exception:  # noqa: S110 - same reason
                    pass
    return read(ground)


@attack("the modules of the guard vanish from sys.modules and are imported again", expect=SANDBOX)
def modules_removed(ground: Ground) -> object:
    for name in [name for name in sys.modules if name.partition(".")[0] == "democrai_sandbox"]:
        del sys.modules[name]
    try:
        import democrai_sandbox

        democrai_sandbox.configure_guard(protected_paths=())
    except (ImportError, AttributeError):
        pass
    return read(ground)


@attack("Popen's announcement is switched off by replacing sys.audit", expect=PROCESS)
def audit_replaced(ground: Ground) -> object:
    import subprocess

    sys.audit = lambda *_: None
    return subprocess.run(["/bin/cat", ground.outside], stdout=subprocess.PIPE, check=True).stdout


@attack("warnings and traceback formatting, which a denial may use, are replaced by the secret's reader", expect=FILES)
def formatting_replaced(ground: Ground) -> object:
    import traceback
    import warnings

    traceback.extract_stack = traceback.format_stack = lambda *_, **__: ground.steal()
    warnings.warn = lambda *_, **__: ground.steal()
    return read(ground)


@attack("the logger that a denial may be written to belongs to the subject", expect=FILES)
def logger_replaced(ground: Ground) -> object:
    import logging

    class Thief(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            ground.steal()

    for name in ("", "democrai_sandbox", "democrai_sandbox.guard"):
        logging.getLogger(name).addHandler(Thief())
        logging.getLogger(name).setLevel(1)
    return read(ground)


@attack("the classes that a question to the decider is made of are replaced one by one", expect=BROKEN)
def question_replaced(ground: Ground) -> object:
    import types

    for module in modules_of_the_guard():
        for name, thing in list(vars(module).items()):
            if name.startswith("__") or isinstance(thing, types.ModuleType):
                continue
            try:
                setattr(module, name, thief(ground))
            except Exception:  # noqa: S112 - refused: the next name follows
                continue
            try:
                open(ground.outside).close()
            except Exception as error:
                ground.errors.append(error)
            setattr(module, name, thing)
    return read(ground)


@attack("methods that a question to the decider is made with are replaced one by one", expect=BROKEN)
def question_methods_replaced(ground: Ground) -> object:
    kinds = {thing for module in modules_of_the_guard() for thing in vars(module).values() if isinstance(thing, type)}
    for kind in [kind for kind in kinds if kind.__module__.startswith("democrai_sandbox")]:
        for name in ("__init__", "__eq__", "__hash__", "__str__", "__post_init__", *vars(kind)):
            if name in {"__dict__", "__weakref__", "__doc__", "__module__", "__new__", "__slots__"}:
                continue
            kept = vars(kind).get(name)
            if kept is not None and not callable(kept):
                continue
            try:
                setattr(kind, name, thief(ground))
            except Exception:  # noqa: S112 - same reason
                continue
            try:
                open(ground.outside).close()
            except Exception as error:
                ground.errors.append(error)
            if name in vars(kind) and kept is None:
                delattr(kind, name)
            else:
                setattr(kind, name, kept)
    return read(ground)


@attack("the standard library that a question to the decider is made with is replaced", expect=FILES)
def question_library_replaced(ground: Ground) -> object:
    import enum

    kept = enum.EnumType.__call__
    enum.EnumType.__call__ = thief(ground)
    try:
        return read(ground)
    finally:
        enum.EnumType.__call__ = kept


class HostDecider:
    """A decider of the host that says no."""

    def decide(self, question: object) -> bool:
        return False


class Truthy(HostDecider):
    """One that answers with something that only looks like a yes."""

    def decide(self, question: object) -> object:
        return 1


class Failing(HostDecider):
    """One that cannot reach its store."""

    def decide(self, question: object) -> bool:
        raise ConnectionError("no store")


@attack("the class of the host's decider is changed", expect=FILES, configure=lambda ground: {"decider": HostDecider()})
def host_decider_changed(ground: Ground) -> object:
    HostDecider.decide = thief(ground)
    return read(ground)


attack(
    "a decider answers with something that is not True",
    expect=FILES,
    configure=lambda ground: {"decider": Truthy()},
    name="truthy_decider",
)(lambda ground: read(ground))
attack(
    "a decider fails",
    expect=Denied(("ExternalAccessCheckFailed", "sandbox_external_access_check_failed")),
    configure=lambda ground: {"decider": Failing()},
    name="failing_decider",
)(lambda ground: read(ground))


@attack(
    "what the decider is asked about is changed by the type of the question",
    expect=BROKEN,
    configure=lambda ground: {"decider": HostDecider()},
)
def question_type_changed(ground: Ground) -> object:
    from democrai_sandbox import AccessQuestion

    AccessQuestion.__init__ = AccessQuestion.__new__ = thief(ground)
    return read(ground)


def replaced_as_object(module: str, name: str):
    def act(ground: Ground) -> bool:
        import importlib

        object.__setattr__(importlib.import_module(module), name, print)
        return True

    return act


attacks_of(
    {
        "builtin": replaced_as_object("builtins", "democrai_planted"),
        "own_module": replaced_as_object("democrai_sandbox.guard", "democrai_planted"),
        "environment": replaced_as_object("os", "environ"),
    },
    "a name of a module is replaced by object.__setattr__: {}",
    expect=SANDBOX,
    group="as_object_",
)


@attack("a builtin function is replaced", expect=SANDBOX, after=lambda ground: len(ground.held.__dict__) and None)
def builtin_replaced(ground: Ground) -> None:
    import builtins

    original = len

    def thief(thing: object) -> int:
        builtins.len = original
        ground.steal()
        return original(thing)

    builtins.len = thief
