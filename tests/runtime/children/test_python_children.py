"""A Python child that reads its guard from the environment is refused the same as its parent; threads stay guarded."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from tests.guard.harness import PACKAGE, Case

HELPERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helpers.py")

CHILD = """
import sys
sys.path.insert(0, {package!r})
import json, os, socket, subprocess
from democrai_sandbox import process_guard_context_from_env
from democrai_sandbox.guard import current_guard

def verdict(act):
    try:
        act()
    except Exception as error:
        return f"{{type(error).__name__}}: {{error}}"
    return "ok"

def body():
    view = current_guard()
    return {{
        "read": verdict(lambda: open({inside!r}).read()),
        "secret": verdict(lambda: open({secret!r}).read()),
        "write": verdict(lambda: open({secret!r}, "w")),
        "network": verdict(lambda: socket.create_connection(("127.0.0.1", {port}), 2)),
        "declared": verdict(lambda: socket.create_connection(("127.0.0.1", {open_port}), 2)),
        "import": verdict(lambda: __import__("ctypes")),
        "subprocess": verdict(lambda: subprocess.run(["true"])),
        "environment": verdict(lambda: os.environ.update(DEMOCRAI_ACCESS="[]")),
        "who": [str(one) for one in view.subject_chain] + [view.user_id, view.session_key],
    }}

print(json.dumps(process_guard_context_from_env().run(body)))
"""


@pytest.fixture
def case(tmp_path):
    """Make a private world in which a body runs in a separate process."""
    return Case(tmp_path)


def helpers(world):
    """Load the helpers of the child tests."""
    return SimpleNamespace(**world.load(HELPERS))


def child_story(world):
    use = helpers(world)
    import json
    import socket

    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    closed, opened = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    port, open_port = closed.getsockname()[1], opened.getsockname()[1]
    with open(world.inside("file"), "w") as file:
        file.write("x")
    text = CHILD.format(
        package=world.args[0], inside=world.inside("file"), secret=world.secret, port=port, open_port=open_port
    )
    rule = {"resource_type": "network", "operation": "connect", "target": f"127.0.0.1:{open_port}"}

    async def body():
        done = await tasks.run_subprocess([sys.executable, "-c", text], timeout=60)
        return json.loads(done.text) if done.returncode == 0 else done.stderr.decode()

    here = {}

    async def compare():
        here["secret"] = await use.told(asyncio.to_thread(lambda: open(world.secret)))
        here["network"] = await use.told(asyncio.to_thread(lambda: socket.create_connection(("127.0.0.1", port), 2)))
        here["import"] = await use.told(asyncio.to_thread(lambda: __import__("ctypes")))
        return await body()

    return use.guarded(world, children, compare, access=[rule]), here


def test_a_python_child_is_stopped_at_the_same_places(case):
    """Files, network, imports, processes and the environment; with the same names in the denials."""
    told, here = case.run(child_story, str(PACKAGE))
    assert told["read"] == "ok"
    assert told["declared"] == "ok"
    assert told["secret"] == here["secret"]
    assert told["secret"].startswith("FilesystemDenied")
    assert told["write"].startswith("FilesystemDenied")
    assert told["network"] == here["network"]
    assert told["network"].startswith("NetworkDenied")
    assert told["import"] == here["import"] == "ModuleDenied: sandbox_module_denied:ctypes"
    assert told["subprocess"].startswith("SubprocessDenied")
    assert told["environment"].startswith("EnvironmentDenied")
    assert told["who"] == ["module:demo", "uma", "s1"]


def blocking_story(world):
    use = helpers(world)
    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import current_guard, live_states, served
    from democrai_sandbox.runtime.access_environment import serving
    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    answers = {}
    begun, cancelled = threading.Event(), threading.Event()

    def work(first, *, second):
        return [first, second, current_guard().subject, served().user_id, threading.current_thread().name]

    def steal():
        with open(world.secret) as file:
            return file.read()

    def slow():
        begun.set()
        cancelled.wait(60)
        try:
            answers["late"] = steal()
        except Exception as error:
            answers["late"] = type(error).__name__

    def stops():
        raise StopIteration

    async def body():
        answers["work"] = await tasks.run_blocking(work, 1, second=2)
        answers["steal"] = await use.told(tasks.run_blocking(steal))
        answers["raises"] = await use.told(tasks.run_blocking(lambda: 1 / 0))
        answers["stops"] = await use.told(tasks.run_blocking(stops))
        answers["exits"] = await told_base(tasks.run_blocking(lambda: sys.exit(3)))
        all_at_once = threading.Barrier(20)
        met = await asyncio.gather(*(tasks.run_blocking(all_at_once.wait, 60) for _ in range(20)))
        answers["together"] = sorted(met) == list(range(20))
        waiting = asyncio.ensure_future(tasks.run_blocking(slow))
        while not begun.is_set():
            await asyncio.sleep(0.01)
        waiting.cancel()
        answers["cancelled"] = type((await asyncio.gather(waiting, return_exceptions=True))[0]).__name__
        cancelled.set()
        inner = lambda: asyncio.run(tasks.run_subprocess(["echo", "from a thread"]))
        answers["child"] = (await tasks.run_blocking(inner)).text

    async def told_base(awaitable):
        try:
            return await awaitable
        except BaseException as error:
            return type(error).__name__

    with serving(Caller(user_id="uma", session_key="s1")):
        use.guarded(world, children, body)
    end = time.monotonic() + 30
    while ("late" not in answers or live_states()) and time.monotonic() < end:
        time.sleep(0.02)
        gc.collect()
    answers["states"] = live_states()
    answers["outside"] = steal()
    return answers


def test_blocking_work_stays_under_the_guard_and_in_the_request(case):
    """Also after its caller was canceled; in separate threads, so that they do not block each other."""
    told = case.run(blocking_story)
    assert told["work"] == [1, 2, "demo", "uma", "run-blocking"]
    assert told["steal"].startswith("FilesystemDenied")
    assert told["raises"].startswith("ZeroDivisionError: ")
    assert told["stops"].startswith("RuntimeError")
    assert told["exits"] == "SystemExit"
    assert told["together"]
    assert told["cancelled"] == "CancelledError"
    assert told["late"] == "FilesystemDenied"
    assert told["child"] == "from a thread\n"
    assert told["states"] == 0
    assert told["outside"] == "SECRET"


def attack_story(world):
    use = helpers(world)
    from democrai_sandbox.runtime.sdk_services import call
    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    answers = {}

    class Evil:
        """An event loop of the subject."""

        def __getattr__(self, name):
            answers.setdefault("asked", []).append(name)
            raise RuntimeError(name)

    def with_own_loop():
        asyncio._set_running_loop(Evil())
        try:
            handle = call("children.start", ["echo", "hi"], {})
            return call("children.wait", handle)[1].decode()
        finally:
            asyncio._set_running_loop(None)

    class Words(list):
        def __iter__(self):
            answers["ran"] = "outside"
            return super().__iter__()

    async def body():
        answers["own loop"] = await use.told(tasks.run_blocking(with_own_loop))
        answers["subclass"] = await use.told(asyncio.to_thread(call, "children.start", Words(["true"]), {}))
        future = call("children.wait", call("children.start", ["sleep", "0.2"], {}))
        future.set_result(("forged",))
        answers["forged"] = (await future)[0]
        await asyncio.sleep(0.5)
        handle = call("children.start", ["sleep", "0.1"], {})
        shown = asyncio.current_task()._callbacks or []
        answers["callbacks"] = sum("children" in repr(callback) for callback, _ in shown)
        waiting = call("children.wait", handle)
        answers["waiting"] = repr(waiting._callbacks)
        await waiting

    use.guarded(world, children, body)
    use.guarded(world, children, lambda: tasks.run_subprocess(["true"]))  # unclaimed children are removed now
    answers["left"] = use.settled(children)
    return answers


def test_what_guarded_code_hands_in_or_gets_leads_nowhere(case):
    """Its own loop is not used, a list subclass is refused, and its objects expose nothing of the host."""
    told = case.run(attack_story)
    assert told["own loop"] == "hi\n"
    assert "asked" not in told
    assert told["subclass"].startswith("InvalidInputError")
    assert "ran" not in told
    assert told["forged"] == "forged"
    assert told["callbacks"] == 0
    assert told["waiting"] == "None"
    assert told["left"] == 0
