"""A hostile module in the host's process: objects that the host uses outside any guard.

Each attack tries to run code outside the guard, each in a separate process. Compositions of builtins replace functions,
because they have no code object that could be marked.
"""

from __future__ import annotations

import os

import pytest

STAGE = os.path.join(os.path.dirname(__file__), "..", "separate_host.py")

PRELUDE = """
import asyncio, functools, gc, pathlib, sys, threading, types
from democrai_sandbox import errors, policy

def steal(secret, out):
    return functools.partial(exec, f"open({out!r}, 'a').write(open({secret!r}).read())", {})

def steal_once(secret, out):
    return functools.partial(next, iter(steal(secret, out), 0))

def tell(function):
    try:
        return repr(function())
    except BaseException as error:
        return type(error).__name__
"""

JOBS = """
@sdk.action("attack")
def attack(secret, out):
    for thread in threading.enumerate():
        owner = getattr(getattr(thread, "_target", None), "__self__", None)
        for _ in range(8):
            tell(lambda: owner._jobs.put((None, None, steal(secret, out), ())))
"""

LOADING = """
FOUND = []
for thread in threading.enumerate():
    for cell in getattr(getattr(thread, "_target", None), "__closure__", None) or ():
        FOUND.append(type(cell.cell_contents).__name__)

@sdk.action("attack")
def attack(secret, out):
    return FOUND
"""

HANDLES = """
def leads(callback):
    owner = getattr(callback, "__self__", None)
    found = [type(owner).__name__] if type(owner).__module__.startswith("democrai_sandbox") else []
    cells = getattr(callback, "__closure__", None) or ()
    return found + [type(cell.cell_contents).__name__ for cell in cells
                    if type(cell.cell_contents).__module__.startswith("democrai_sandbox")]

@sdk.task("work")
async def work():
    sdk.tasks.progress(0.5, "half")
    await sdk.tasks.status("x" * 26) if False else None
    loop = asyncio.get_running_loop()
    callbacks = [handle._callback for handle in [*loop._scheduled, *loop._ready]]
    for task in asyncio.all_tasks():
        callbacks += [each[0] if type(each) is tuple else each for each in getattr(task, "_callbacks", None) or ()]
    return sorted({name for callback in callbacks for name in leads(callback)})

@sdk.action("attack")
async def attack(secret, out):
    started = await sdk.tasks.start("work")
    while (now := await sdk.tasks.status(started)).state in ("queued", "running"):
        await asyncio.sleep(0.02)
    return [now.state, now.result]
"""

CLASSES = """
@sdk.action("attack")
async def attack(secret, out):
    mine = {"__module__": "democrai_sandbox.evil", "__init__": steal_once(secret, out), "__str__": lambda self: "odd"}
    Evil = type("Evil", (policy.SandboxError,), mine)
    sys.modules["democrai_sandbox.evil"] = types.SimpleNamespace(Evil=Evil)
    raise policy.SandboxError.__new__(Evil)
"""

YIELDS = """
class Wait:
    def __init__(self, item): self.item = item
    def __await__(self): yield self.item

@sdk.action("attack")
async def attack(secret, out):
    class Odd:
        _asyncio_future_blocking = True
        get_loop = steal(secret, out)
    class Future(asyncio.Future):
        get_loop = steal(secret, out)
        add_done_callback = steal(secret, out)
    future = Future()
    future._asyncio_future_blocking = True
    return [tell(lambda: None), await told(Wait(Odd())), await told(Wait(future))]

async def told(awaitable):
    try:
        return repr(await awaitable)
    except Exception as error:
        return type(error).__name__
"""

REPORTS = """
@sdk.action("attack")
async def attack(secret, out):
    class Odd(Exception):
        __str__ = __repr__ = steal(secret, out)
    def fail(*_): raise Odd()
    async def fail_later(): raise Odd()
    asyncio.ensure_future(fail_later())
    asyncio.get_running_loop().call_soon(fail, Odd())
    await asyncio.sleep(0.05)
"""

OWN_NAMES = """
@sdk.action("attack")
async def attack(secret, out):
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.runtime.calls import outcome
    tell(lambda: vars(outcome).__setitem__("plain", steal_once(secret, out)))
    tell(lambda: outcome.release.__globals__.__setitem__("plain", steal_once(secret, out)))
    tell(lambda: outcome._INVALID.__setitem__("InvalidInputError", steal_once(secret, out)))
    tell(lambda: setattr(outcome.release, "__defaults__", (1,)))
    raise policy.InvalidInputError.of("x")
"""

FUTURES = """
@sdk.action("attack")
async def attack(secret, out):
    class Odd(Exception):
        __str__ = __repr__ = steal(secret, out)
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            tell(lambda: task._fut_waiter.set_exception(Odd()))
    await asyncio.sleep(0.05)
"""

METHODS = """
@sdk.action("attack")
async def attack(secret, out):
    loop = asyncio.get_running_loop()
    found = [handle._callback for handle in [*loop._scheduled, *loop._ready]]
    found += [handle._callback for key in loop._selector.get_map().values() for handle in key.data or () if handle]
    return sorted({type(owner).__name__ for method in found for owner in owners(method)
                   if type(owner).__module__.startswith("democrai_sandbox")})

def owners(method):
    yield getattr(method, "__self__", None)
    try:
        yield method.__reduce__()[1][0]
    except BaseException:
        pass
"""

IMPORTS = """
@sdk.action("attack")
async def attack(secret, out):
    folder = sdk.data_dir() / "mcp"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"open({out!r}, 'a').write(open({secret!r}).read())")
    sys.path.insert(0, str(sdk.data_dir()))
    try:
        await sdk.mcp.list_tools("none")
    except Exception:
        pass
"""

ATTACKS = {
    "jobs for the threads of the host": (JOBS, None),
    "what the thread that loads a module works with": (LOADING, []),
    "timers of the loop and callbacks of tasks that lead to the runtime": (HANDLES, ["done", []]),
    "an error class that looks like one of ours": (CLASSES, ["ExtensionFailed", "Evil: odd"]),
    "what a coroutine yields": (YIELDS, ...),
    "errors that the loop reports": (REPORTS, None),
    "names of our modules": (OWN_NAMES, ["InvalidInputError", "x"]),
    "futures that tasks of the host wait for": (FUTURES, None),
    "methods that the loop is to call": (METHODS, []),
    "a library of the host's that it imports later": (IMPORTS, None),
}


def attacked(world):
    import asyncio
    import gc
    import logging

    logging.basicConfig(stream=open(os.devnull, "w"))  # the host has a log for errors
    stage = world.load(STAGE)["Stage"](world.base)
    secret, out = stage.base / "secret.txt", stage.base / "out.txt"
    secret.write_text("SECRET")
    stage.module("demo", world.args[0])
    stage.module("after", "@sdk.action('fine')\ndef fine(): return 1")
    stage.module("far", "@sdk.action('fine')\ndef fine(): return 1")

    async def story(stage):
        house = asyncio.ensure_future(keep_house())
        await stage.action("far", "fine")
        came = await stage.action("demo", "attack", secret=str(secret), out=str(out))
        gc.collect()
        await asyncio.sleep(0.1)
        house.cancel()
        return [came, await stage.action("after", "fine"), out.read_text() if out.exists() else ""]

    return stage.play(story, isolation={"module:far": "process"})


async def keep_house():
    """Run work of the host in a loop, and report it."""
    import asyncio
    import logging

    while True:
        try:
            await asyncio.sleep(0.3)
        except Exception:  # noqa: BLE001 - the host ignores errors
            logging.getLogger("host").exception("something went wrong")


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_of_a_module_runs_outside_its_guard(case, name):
    code, expected = ATTACKS[name]
    came, after, stolen = case.run(attacked, PRELUDE + code)
    assert stolen == ""
    assert after == 1
    assert expected is ... or came == expected
