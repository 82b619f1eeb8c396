"""Calls into a worker: functions, coroutines and streams, for whom they are made, progress and cancellation."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pytest

from tests.services.forks import RuntimeCase as Case

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import Host, make_spec, make_worker, run, until, verdict, who


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)


MIXED = """
from democrai_sandbox import sdk
import asyncio, threading, time

@sdk.method("add")
def add(a, b=1):
    return a + b

@sdk.method("add later")
async def add_later(a, b=1, wait=0.0):
    await asyncio.sleep(wait)
    return a + b

@sdk.method("count")
def count(to):
    for number in range(to):
        yield {"number": number, "raw": bytes([number % 256])}

@sdk.method("count later")
async def count_later(to):
    for number in range(to):
        await asyncio.sleep(0)
        yield number

@sdk.method("fail")
def fail():
    raise ValueError("no such luck")

@sdk.method("fail later")
async def fail_later():
    yield 1
    raise ValueError("no such luck")

@sdk.method("who")
def who():
    return list(sdk.request())

@sdk.method("who later")
async def who_later():
    await asyncio.sleep(0.01)
    return list(sdk.request())
"""


def calls_story(world):
    worker, _ = make_worker(world, MIXED)

    async def story():
        told = {"declared": sorted(name for _, name in await worker.start())}
        told["plain"] = await worker.call("method", "add", {"a": 1})
        told["later"] = await worker.call("method", "add later", {"a": 1, "b": 2})
        told["bytes"] = (await worker.call("method", "add", {"a": b"x\0", "b": b"\xff"})).hex()
        told["nested"] = await worker.call(
            "method", "add", {"a": [1, {"b": (2, None)}], "b": [True, 0.5, "ä\ud800"[:1]]}
        )
        told["failed"] = await verdict(worker.call("method", "fail"))
        told["arguments"] = await verdict(worker.call("method", "add", {"c": 1}))
        told["unknown"] = await verdict(worker.call("method", "ad"))
        told["not plain"] = await verdict(worker.call("method", "add", {"a": object()}))
        told["stream"] = [item["number"] async for item in worker.stream("method", "count", {"to": 100})]
        told["raw"] = [item["raw"] async for item in worker.stream("method", "count", {"to": 3})][2].hex()
        told["stream later"] = [item async for item in worker.stream("method", "count later", {"to": 50})]
        told["who"] = await worker.call("method", "who", caller=who("uma", "", "s1", "super", "all", "t1"))
        told["who later"] = await worker.call("method", "who later", caller=who("ada", "o"))
        told["no stream"] = await verdict(worker.call("method", "count", {"to": 1}))
        got, failed = [], None
        try:
            async for item in worker.stream("method", "fail later"):
                got.append(item)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        told["stream failed"] = [got, failed]
        told["starts"], told["in flight"] = worker.starts, worker.in_flight
        await worker.stop()
        told["stopped"] = await verdict(worker.call("method", "add", {"a": 1}))
        return told

    return run(story)


def test_what_a_worker_declares_can_be_called_as_in_process(case):
    """Plain functions, coroutines and both sorts of generators; errors come over as what they are."""
    told = case.run(calls_story)
    names = ["add", "add later", "count", "count later", "fail", "fail later", "who", "who later"]
    assert told["declared"] == names
    assert (told["plain"], told["later"], told["bytes"]) == (2, 3, "7800ff")
    assert told["nested"] == [1, {"b": [2, None]}, True, 0.5, "ä"]
    assert told["failed"] == "ExtensionFailed: ValueError: no such luck"
    assert told["arguments"].startswith("ExtensionFailed: TypeError")
    assert told["unknown"] == "ExtensionUnknown: engine:demo has no method 'ad'; did you mean 'add'?"
    assert told["not plain"] == "InvalidInputError: /4/a: not plain data: object"
    assert told["stream"] == list(range(100))
    assert told["raw"] == "02"
    assert told["stream later"] == list(range(50))
    assert told["who"] == ["uma", "", "s1", "super", "all", "t1"]
    assert told["who later"] == ["ada", "o", "", "", "", ""]
    assert told["no stream"].startswith("ExtensionUnknown: method count of engine:demo is a stream")
    assert told["stream failed"] == [[1], "ExtensionFailed: ValueError: no such luck"]
    assert (told["starts"], told["in flight"]) == (1, 0)
    assert told["stopped"] == "WorkerFailed: worker_failed:engine:demo: it was stopped"


SLOW = """
from democrai_sandbox import sdk
import time

@sdk.method("sleep")
def sleep(seconds):
    time.sleep(seconds)
    return list(sdk.request())[0]
"""


def together_story(world):
    plain, _ = make_worker(world, SLOW, threads=4)
    mixed, _ = make_worker(world, MIXED, name="mixed")

    async def story():
        await plain.start()
        await mixed.start()
        five, many, waiting = [], [], []

        async def together(calls, seconds):
            began = time.monotonic()
            came = await asyncio.gather(*calls)
            seconds.append(time.monotonic() - began)
            return came

        for _ in range(5):
            calls = [plain.call("method", "sleep", {"seconds": 0.3}, caller=who(f"u{number}")) for number in range(5)]
            users = await together(calls, five)
            later = [mixed.call("method", "add later", {"a": number, "wait": 0.3}) for number in range(200)]
            sums = await together(later, many)
            await together([plain.call("method", "sleep", {"seconds": 0.2}) for _ in range(10)], waiting)
            if five[-1] < 1.2 and many[-1] < 2.0 and waiting[-1] < 2.0:
                break  # else the machine was busy with other things
        await plain.stop()
        await mixed.stop()
        return {"users": users, "five": min(five), "sums": sums, "many": min(many), "waiting": min(waiting)}

    return run(story)


def test_calls_run_at_the_same_time_each_for_its_own_caller(case):
    """Plain functions on a few threads, the rest of them waiting; coroutines all together."""
    told = case.run(together_story)
    assert told["users"] == [f"u{number}" for number in range(5)]
    assert told["five"] < 1.2
    assert told["sums"] == [number + 1 for number in range(200)]
    assert told["many"] < 2.0
    assert 0.35 < told["waiting"] < 2.0


LONG = """
from democrai_sandbox import sdk
from democrai_sandbox.runtime import doors
import asyncio, os, time

@sdk.method("wait")
def wait(path):
    open(path + ".begun", "w").close()
    while not doors.call("cancelled"):
        time.sleep(0.01)
    with open(path, "w") as file:
        file.write("told")
    return "told"

@sdk.method("wait later")
async def wait_later(path):
    open(path + ".begun", "w").close()
    try:
        await asyncio.sleep(60)
    finally:
        with open(path, "w") as file:
            file.write("cancelled")

@sdk.method("endless")
def endless(path):
    made = 0
    try:
        while True:
            made += 1
            yield made
    finally:
        with open(path, "w") as file:
            file.write(str(made))

@sdk.method("endless later")
async def endless_later(path):
    made = 0
    try:
        while True:
            made += 1
            yield made
    finally:
        with open(path, "w") as file:
            file.write(str(made))

@sdk.method("work")
def work():
    for step in range(4):
        doors.call("tasks.progress", step / 4, "working")
    return "done"
"""


def cancel_story(world):
    worker, _ = make_worker(world, LONG, host=Host(**{"tasks.progress": lambda *_: None}))

    def note(name):
        return os.path.join(world.base, "data", "demo", name)

    def read(name):
        with open(note(name)) as file:
            return file.read()

    async def cancelled(name, file):
        task = asyncio.create_task(worker.call("method", name, {"path": note(file)}))
        await until(lambda: os.path.exists(note(f"{file}.begun")))
        task.cancel()
        ended = await asyncio.gather(task, return_exceptions=True)
        await until(lambda: worker.in_flight == 0)
        return [type(ended[0]).__name__, read(file)]

    async def left(name, file):
        items = worker.stream("method", name, {"path": note(file)})
        got = [await anext(items) for _ in range(30)]
        await asyncio.sleep(0.2)
        await items.aclose()
        await until(lambda: worker.in_flight == 0)
        return [got[-1], int(read(file))]

    async def story():
        await worker.start()
        told = {"plain": await cancelled("wait", "a"), "later": await cancelled("wait later", "b")}
        told["stream"] = await left("endless", "c")
        told["stream later"] = await left("endless later", "d")
        # A cancellation overtakes the call it is about: they come by different ways.
        early = [asyncio.create_task(worker.call("method", "wait later", {"path": note("e")})) for _ in range(50)]
        early += [asyncio.create_task(worker.call("method", "wait", {"path": note("e")})) for _ in range(50)]
        await asyncio.sleep(0)
        for task in early:
            task.cancel()
        await asyncio.gather(*early, return_exceptions=True)
        await until(lambda: worker.in_flight == 0)
        steps = []
        progress = lambda *step: steps.append(step)
        told["work"] = [await worker.call("method", "work", progress=progress), steps]
        told["starts"] = worker.starts
        await worker.stop()
        return told

    return run(story)


def test_a_cancelled_call_ends_in_the_worker_too(case):
    """A task is cancelled, a plain function told, a stream closed before it makes more than somebody wants."""
    told = case.run(cancel_story)
    assert told["plain"] == ["CancelledError", "told"]
    assert told["later"] == ["CancelledError", "cancelled"]
    for kind in ("stream", "stream later"):
        last, made = told[kind]
        assert last == 30
        assert 30 <= made <= 30 + 16 + 2
    assert told["work"] == ["done", [[0.0, "working"], [0.25, "working"], [0.5, "working"], [0.75, "working"]]]
    assert told["starts"] == 1


SERVED = """
from democrai_sandbox import sdk
from democrai_sandbox.runtime import doors
import asyncio

@sdk.method("ask")
def ask(name, args=()):
    return doors.call(name, *args)

@sdk.method("ask later")
async def ask_later(name, args=()):
    return await doors.call(name, *args)

@sdk.method("own loop")
def own_loop(name, args=()):
    async def asking():
        return await doors.call(name, *args)
    return asyncio.run(asking())

@sdk.method("places")
def places():
    return [str(sdk.data_dir()), str(sdk.extension_dir())]
"""


def services_story(world):
    def refuse():
        from democrai_sandbox.errors import NetworkDenied

        raise NetworkDenied("https://a.test", subject="demo", subject_kind="engine", operations=("send",))

    def served():
        from democrai_sandbox.guard import served as present

        return list(present())

    def promise(value):
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.05, future.set_result, value)
        return future

    services = {
        "echo": lambda *args: list(args),
        "refuse": refuse,
        "break": lambda: 1 / 0,
        "odd": lambda: object(),
        "promise": promise,
        "kept": lambda value: asyncio.ensure_future(asyncio.sleep(0, value)),
        "broken": lambda: asyncio.ensure_future(fails()),
        "served": served,
    }

    async def fails():
        refuse()

    worker, host = make_worker(world, SERVED, host=Host(**services))

    async def story():
        ask = lambda name, *args, way="ask": verdict(
            worker.call(
                "method", way, {"name": name, "args": list(args)}, caller=who("uma", "o", "s", "admin", "", "t")
            )
        )
        told = {"echo": await ask("echo", 1, {"a": b"x"}.keys().__iter__().__next__())}
        told["refuse"], told["break"], told["odd"] = await ask("refuse"), await ask("break"), await ask("odd")
        told["none"] = await ask("nothing")
        told["served"] = await ask("served")
        told["later"] = [await ask(name, 5, way="ask later") for name in ("promise", "kept")]
        told["broken"] = await ask("broken", way="ask later")
        told["own loop"] = await ask("promise", 7, way="own loop")
        told["places"] = await worker.call("method", "places")
        view = host.views[0]
        told["view"] = [view.labels, view.user_id, view.organization_id, view.session_key, view.allow_subprocess]
        told["rules"] = len(view.allow_chain[0].rules)
        await worker.stop()
        return told

    return run(story)


def test_code_in_a_worker_reaches_the_services_of_the_host(case):
    """With plain data, now or later; refusals come over as what they are, other failures stay in the host's log."""
    told = case.run(services_story)
    assert told["echo"] == [1, "a"]
    assert told["refuse"] == "NetworkDenied: External URL is locked. (sandbox_network_denied:demo:https://a.test)"
    assert told["broken"] == told["refuse"]
    assert told["break"] == "RuntimeServiceFailed: break failed in the runtime"
    assert told["odd"].startswith("InvalidInputError")
    assert told["none"].startswith("NoRuntime")
    assert told["served"] == ["uma", "o", "s", "admin", "", "t"]
    assert (told["later"], told["own loop"]) == ([5, 5], 7)
    assert told["places"] == [str(case.base / "data" / "demo"), str(case.base / "subjects" / "demo")]
    assert told["view"] == [["engine:demo"], "uma", "o", "s", False]
    assert told["rules"] == 5
