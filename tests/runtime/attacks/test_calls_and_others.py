"""A hostile module in the host's process: calls that should fail otherwise, and the work of other subjects."""

from __future__ import annotations

import os

import pytest

STAGE = os.path.join(os.path.dirname(__file__), "..", "separate_host.py")
OPEN = {"callback", "task"}


ERRORS = """
import types
from democrai_sandbox import errors, policy

class Odd(Exception):
    @property
    def __notes__(self): raise SystemExit(3)
    @property
    def __cause__(self): raise SystemExit(3)

class Named(type):
    @property
    def __name__(self): raise SystemExit(3)

@sdk.action("notes")
def notes(): raise Odd("x")

@sdk.action("notes later")
async def notes_later(): raise Odd("x")

@sdk.action("name")
async def name(): raise Named("N", (Exception,), {})()

@sdk.action("problems")
async def problems():
    error = policy.InvalidInputError.of("x")
    error.problems = [types.SimpleNamespace(pointer=object(), message=None, suggestion=[])]
    raise error

@sdk.action("decision")
async def decision():
    class Decision(policy.AccessDecision):
        code = "none of ours"
    error = errors.NetworkDenied("x", subject="demo", subject_kind="module", chain=(), operations=())
    error.decision = Decision(False, policy.DecisionCode.NOT_ENABLED, False, "", "")
    raise error

@sdk.action("target")
async def target():
    raise errors.FilesystemDenied(["x"], subject=object(), subject_kind="module", chain=(), operations=())
"""


def odd_errors(world):
    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", ERRORS)
    found = {}

    async def story(stage):
        for name in ("notes", "notes later", "name", "problems", "decision", "target"):
            try:
                await stage.runtime.modules.action("demo", name, {}, stage.uma())
            except BaseException as error:  # noqa: BLE001 - an exit would end the host
                found[name] = [type(error).__module__.partition(".")[0], type(error).__name__]
        return found

    return stage.play(story)


def test_an_error_that_resists_being_told_is_still_an_error_of_that_call(case):
    found = case.run(odd_errors)
    assert len(found) == 6
    assert {kind for kind, _ in found.values()} == {"democrai_sandbox"}
    assert {name for _, name in found.values()} <= {"ExtensionFailed", "InvalidInputError", "NetworkDenied"}


DEADLINES = """
import asyncio, time

@sdk.action("outlive")
async def outlive():
    from democrai_sandbox.runtime.calls import invocation
    found = []
    for value in list(vars(invocation).values()):
        try:
            found += [deadline for kept in value.values() for deadline in kept._pending.values()]
        except Exception:
            pass
    try:
        found += invocation.deadlines()._pending.values()
    except Exception:
        pass
    for deadline in found:
        deadline.deadline = 1e12
    await asyncio.sleep(20)
    return len(found)
"""


def deadlines(world):
    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", DEADLINES)

    async def story(stage):
        return await stage.action("demo", "outlive")

    return stage.play(story, call_timeout=0.5)


def test_a_module_does_not_put_off_its_own_deadline(case):
    """Guarded code cannot change the deadline."""
    kind, text = case.run(deadlines)
    assert kind == "CallTimeout"
    assert "outlive" in text and "0.5 s" in text


CANCELS = """
import asyncio

@sdk.action("cancel")
async def cancel():
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()

@sdk.task("tick", every=0.3)
async def tick(): pass
"""


def cancels(world):
    import asyncio

    from democrai_sandbox.runtime.store import TaskFilter

    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", CANCELS)

    async def story(stage):
        await stage.action("demo", "cancel")
        await asyncio.sleep(0.1)
        before = len(await stage.runtime.tasks.tasks(TaskFilter(module="demo")))
        for _ in range(200):
            if len(await stage.runtime.tasks.tasks(TaskFilter(module="demo"))) > before + 1:
                return True
            await asyncio.sleep(0.1)
        return False

    return stage.play(story)


def test_the_schedule_goes_on_when_a_module_cancels_all_tasks_it_finds(case):
    assert case.run(cancels) is True


ENVIRONMENT = """
import os

@sdk.action("set")
async def put(value):
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD", "PATH", "PIP_INDEX_URL", "CC"):
        try:
            os.environ[name] = value
        except PermissionError:
            os.environ._data[name.encode()] = value.encode()

@sdk.action("names")
def names(value): return [name for name, given in os.environ.items() if value in given]

@sdk.action("hang")
def hang():
    import time
    time.sleep(60)
"""


def environment(world):
    from democrai_sandbox.runtime.child_process import host_environment

    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", ENVIRONMENT)
    stage.module("far", ENVIRONMENT)

    async def story(stage):
        value = str(stage.data / "modules" / "demo")
        await stage.action("demo", "set", value=value)
        await stage.told(stage.runtime.modules.call("far", "action", "hang", {}, stage.uma(), seconds=0.2))
        kept = [name for name, given in host_environment().items() if value in given]
        return [kept, await stage.action("far", "names", value=value)]

    return stage.play(story, isolation={"module:far": "process"})


def test_what_a_module_puts_into_the_environment_is_not_given_to_later_children_of_the_host(case):
    kept, of_worker = case.run(environment)
    assert kept == []
    assert [name for name in of_worker if name not in ("DEMOCRAI_ACCESS",)] == []


IDENTITY = """
import contextvars, threading

def forge():
    for variable in contextvars.copy_context():
        present = variable.get(None)
        if type(present).__name__ == "Caller":
            variable.set(type(present)("ada", "", "", "super", "", ""))

def tell(function):
    try:
        return repr(function())
    except Exception as error:
        return type(error).__name__

@sdk.action("forge")
async def forged():
    forge()
    return [tell(sdk.access.pending_requests), sdk.request().user_id]
"""


def identity(world):
    from democrai_sandbox.policy import Subject

    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", IDENTITY)
    stage.open(access_settings={"managers": (Subject.parse("module:demo"),)})

    async def story(stage):
        return await stage.action("demo", "forge")

    return stage.play(story)


def test_a_manager_does_not_become_another_user_by_writing_into_its_context(case):
    assert case.run(identity) == ["ExternalAccessAdminRequired", "uma"]


CHILDREN = """
import asyncio

@sdk.action("flood")
async def flood(count):
    started = 0
    for _ in range(count):
        try:
            waiting.append(asyncio.ensure_future(sdk.tasks.run_subprocess(["sleep", "20"])))
            await asyncio.sleep(0)
            if waiting[-1].done():
                waiting[-1].result()
            started += 1
        except Exception:
            pass
    await over.wait()
    return started

@sdk.action("refused")
async def refused(): return sum(one.done() for one in waiting)

@sdk.action("end")
async def end(): over.set()

@sdk.action("one")
async def one():
    return (await sdk.tasks.run_subprocess(["true"])).returncode

waiting, over = [], asyncio.Event()
"""


def children(world):
    import asyncio

    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", CHILDREN)
    stage.module("other", CHILDREN)

    async def story(stage):
        floods = [
            asyncio.ensure_future(stage.action("demo", "flood", stage.uma(session_key=f"s{number}"), count=14))
            for number in range(5)
        ]
        for _ in range(100):  # limited: a successful attack is never refused
            if await stage.action("demo", "refused") >= 5 * 14 - 16:
                break
            await asyncio.sleep(0.05)
        came = await stage.action("other", "one")
        await stage.action("demo", "end")
        await asyncio.gather(*floods)
        return came

    return stage.play(story, call_timeout=60.0)


def test_a_module_with_many_sessions_leaves_room_for_the_programs_of_others(case):
    """The programs of all its sessions are counted together."""
    assert case.run(children) == 0


TAKING_OVER = """
import importlib.util, sys

SEEN = []

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if "x_victim" in name:
            SEEN.append(name)
            return importlib.util.spec_from_loader(name, Loader())

class Loader:
    def create_module(self, spec): return None
    def exec_module(self, module):
        sdk.action("who")(lambda: "taken over")

sys.meta_path.insert(0, Finder)

@sdk.action("seen")
def seen(): return SEEN
"""


def taking_over(world):
    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("early", TAKING_OVER)
    folder = stage.module("victim", "from . import helper\n@sdk.action('who')\ndef who(): return helper.NAME")
    (folder / "helper.py").write_text("NAME = 'itself'")

    async def story(stage):
        return [await stage.action("victim", "who"), await stage.action("early", "seen")]

    return stage.play(story)


def test_a_finder_that_an_earlier_module_left_does_not_load_a_later_one(case):
    assert case.run(taking_over) == ["itself", []]


SHARED = """
import asyncio, functools
from democrai_sandbox.runtime import sdk_services

async def by_hand(steps, odd):
    steps.send(None)
    steps.throw(odd)

async def by_own_coroutine(steps, odd):
    async def wait(): return await steps
    coroutine = wait()
    coroutine.send(None)
    coroutine.throw(odd)

async def by_waiter(steps, odd):
    async def wait(): return await steps
    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0.1)
    task._fut_waiter.set_exception(odd)
    await task

@sdk.action("attack")
async def attack(secret, how):
    got = []
    class Odd(Exception):
        __str__ = functools.partial(exec, f"got.append(open({secret!r}).read())", {"got": got})
    steps = sdk_services.call("ai.entrance", "tool", "rich.read")({})
    way = {"hand": by_hand, "own coroutine": by_own_coroutine, "waiter": by_waiter}[how]
    try:
        await way(steps, Odd())
    except BaseException:
        pass
    return got
"""


def shared(world):
    stage = world.load(STAGE)["Stage"](world.base)
    secret = stage.base / "secret.txt"
    secret.write_text("SECRET")
    rule = {"resource_type": "filesystem", "operation": "read", "target": str(secret)}
    tool = f"""
import asyncio
@sdk.tool("read", access=[{rule!r}], shared=True)
async def read() -> int:
    'Read.'
    await asyncio.sleep(1)
    return 1
"""
    stage.module("poor", SHARED)
    stage.module("rich", tool, ("filesystem", "read", secret))

    async def story(stage):
        return await stage.action("poor", "attack", secret=str(secret), how=world.args[0])

    return stage.play(story)


@pytest.mark.parametrize("how", ["hand", "own coroutine", "waiter"])
def test_who_calls_a_shared_tool_puts_no_object_into_it(case, how):
    assert case.run(shared, how) == []


EXITS = """
import asyncio

@sdk.action("callback")
async def callback():
    def leave(): raise SystemExit(9)
    asyncio.get_running_loop().call_soon(leave)
    await asyncio.sleep(0.1)

@sdk.action("task")
async def task():
    async def leave(): raise KeyboardInterrupt
    asyncio.ensure_future(leave())
    await asyncio.sleep(0.1)

@sdk.action("signal")
async def by_signal():
    import signal
    try:
        signal.raise_signal(signal.SIGTERM)
    except Exception as error:
        return type(error).__name__
"""


def exits(world):
    stage = world.load(STAGE)["Stage"](world.base)
    stage.module("demo", EXITS)

    async def story(stage):
        await stage.action("demo", world.args[0])
        return "goes on"

    return stage.play(story)


@pytest.mark.parametrize("how", ["callback", "task", "signal"])
def test_a_module_does_not_end_the_host(case, request, how):
    if how in OPEN:
        request.applymarker(
            pytest.mark.xfail(
                reason="asyncio lets an exit that is raised in a callback or task end its loop; see SECURITY.md"
            )
        )
    assert case.run(exits, how) == "goes on"
