"""Calls into a worker: functions, coroutines and streams, their callers, progress and cancellation."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from tests.services.golden import sentence

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import Host, make_worker, run, until, verdict, who


@pytest.fixture
def case(fresh_case):
    """Make a world whose workers start as in any host."""
    return fresh_case


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
    raise ValueError("unlucky")

@sdk.method("fail later")
async def fail_later():
    yield 1
    raise ValueError("unlucky")

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
            failed = [type(error).__name__, str(error)]
        told["stream failed"] = [got, failed]
        told["starts"], told["in flight"] = worker.starts, worker.in_flight
        await worker.stop()
        told["stopped"] = await verdict(worker.call("method", "add", {"a": 1}))
        return told

    return run(story)


def test_what_a_worker_declares_can_be_called_as_in_process(case):
    """Functions, coroutines and both kinds of generators give the same values and errors as in process."""
    told = case.run(calls_story)
    names = ["add", "add later", "count", "count later", "fail", "fail later", "who", "who later"]
    assert told["declared"] == names
    assert (told["plain"], told["later"], told["bytes"]) == (2, 3, "7800ff")
    assert told["nested"] == [1, {"b": [2, None]}, True, 0.5, "ä"]
    assert told["failed"] == ["ExtensionFailed", "ValueError: unlucky"]
    kind, text = told["arguments"]
    assert (kind, text.partition(":")[0]) == ("ExtensionFailed", "TypeError")
    kind, text = told["unknown"]
    assert kind == "ExtensionUnknown"
    assert "'add'" in text
    sentence("unknown method", text)
    kind, text = told["not plain"]
    assert kind == "InvalidInputError"
    assert text.startswith("/4/a: ") and text.endswith("object")
    assert told["stream"] == list(range(100))
    assert told["raw"] == "02"
    assert told["stream later"] == list(range(50))
    assert told["who"] == ["uma", "", "s1", "super", "all", "t1"]
    assert told["who later"] == ["ada", "o", "", "", "", ""]
    kind, text = told["no stream"]
    assert kind == "ExtensionUnknown"
    sentence("stream that is called", text)
    assert told["stream failed"] == [[1], ["ExtensionFailed", "ValueError: unlucky"]]
    assert (told["starts"], told["in flight"]) == (1, 0)
    kind, text = told["stopped"]
    assert kind == "WorkerFailed"
    sentence("stopped worker", text)


MEETING = """
from democrai_sandbox import sdk
import asyncio, threading, time

lock, running, most = threading.Lock(), 0, 0
MEETINGS = {number: threading.Barrier(number) for number in (4, 5)}

@sdk.method("meet")
def meet(number):
    global running, most
    with lock:
        running += 1
        most = max(most, running)
    MEETINGS[number].wait(40)
    with lock:
        running -= 1
    return sdk.request().user_id

@sdk.method("most")
def tell_most():
    return most
"""
GATHERING = """
from democrai_sandbox import sdk
import asyncio

inside, everybody = 0, asyncio.Event()

@sdk.method("gather")
async def gather(number, of):
    global inside
    inside += 1
    if inside == of:
        everybody.set()
    await everybody.wait()
    return [number, sdk.request().user_id]
"""


def together_story(world):
    plain, _ = make_worker(world, MEETING, threads=4)
    later, _ = make_worker(world, GATHERING, name="later")

    async def meet(number, calls):
        return await asyncio.gather(
            *(plain.call("method", "meet", {"number": number}, caller=who(f"u{call}")) for call in range(calls))
        )

    async def story():
        told = {"five": await meet(5, 5), "twelve": await meet(4, 12), "most": await plain.call("method", "most")}
        told["later"] = await asyncio.gather(
            *(
                later.call("method", "gather", {"number": call, "of": 200}, caller=who(f"u{call}"))
                for call in range(200)
            )
        )
        await plain.stop()
        await later.stop()
        return told

    return run(story)


def test_calls_run_at_the_same_time_each_for_its_own_caller(case):
    """Plain functions share a few threads while the rest wait; coroutines all run concurrently."""
    told = case.run(together_story)
    assert told["five"] == [f"u{number}" for number in range(5)]
    assert told["twelve"] == [f"u{number}" for number in range(12)]
    assert told["most"] == 5  # four threads and the lane
    assert told["later"] == [[number, f"u{number}"] for number in range(200)]


LONG = """
from democrai_sandbox import sdk
from democrai_sandbox.runtime import sdk_services
import asyncio, os, time

@sdk.method("wait")
def wait(path):
    open(path + ".begun", "w").close()
    while not sdk_services.call("cancelled"):
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
        sdk_services.call("tasks.progress", step / 4, "working")
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
        await asyncio.sleep(0.05)  # meanwhile it produces only as many as requested
        await items.aclose()
        await until(lambda: worker.in_flight == 0)
        return [got[-1], int(read(file))]

    async def story():
        await worker.start()
        told = {"plain": await cancelled("wait", "a"), "later": await cancelled("wait later", "b")}
        told["stream"] = await left("endless", "c")
        told["stream later"] = await left("endless later", "d")
        # A cancellation overtakes its call, because they use different sockets.
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
    """A task is canceled, a plain function can check, and a stream is closed before it produces more than wanted."""
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
from democrai_sandbox.runtime import sdk_services
import asyncio

@sdk.method("ask")
def ask(name, args=()):
    return sdk_services.call(name, *args)

@sdk.method("ask later")
async def ask_later(name, args=()):
    return await sdk_services.call(name, *args)

@sdk.method("own loop")
def own_loop(name, args=()):
    async def asking():
        return await sdk_services.call(name, *args)
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
    """Plain data arrives now or later, and so do refusals; other failures stay in the host's log."""
    told = case.run(services_story)
    assert told["echo"] == [1, "a"]
    kind, text = told["refuse"]
    assert kind == "NetworkDenied"
    assert "sandbox_network_denied:demo:https://a.test" in text
    assert told["broken"] == told["refuse"]
    kind, text = told["break"]
    assert kind == "RuntimeServiceFailed"
    assert "break" in text and "zero" not in text
    assert told["odd"][0] == "InvalidInputError"
    assert told["none"][0] == "NoRuntime"
    assert "nothing" in told["none"][1]
    assert told["served"] == ["uma", "o", "s", "admin", "", "t"]
    assert (told["later"], told["own loop"]) == ([5, 5], 7)
    assert told["places"] == [str(case.base / "data" / "demo"), str(case.base / "subjects" / "demo")]
    assert told["view"] == [["engine:demo"], "uma", "o", "s", False]
    assert told["rules"] == 5


LARGE = """
from democrai_sandbox import sdk
import asyncio

@sdk.method("doubled")
async def doubled(data, wait):
    await asyncio.sleep(wait)
    return [data, data[::-1]]
"""


def large_values(world):
    sizes = (10, 40_000, 1_000_000, 2_000_000, 5_000_000)
    values = [bytes([number]) * size + b"end" for number, size in enumerate(sizes * 4)]

    async def story():
        worker, _ = make_worker(world, LARGE)
        waits = [(number % 5) / 200 for number in range(len(values))]
        calls = [
            worker.call("method", "doubled", {"data": data, "wait": wait})
            for data, wait in zip(values, waits, strict=True)
        ]
        found = await asyncio.gather(*calls)
        one_by_one = [await worker.call("method", "doubled", {"data": data, "wait": 0}) for data in values[:5] * 2]
        await worker.stop()
        return [found, one_by_one]

    found, one_by_one = run(story)
    expected = [[data, data[::-1]] for data in values]
    return [found == expected, one_by_one == expected[:5] * 2]


def test_concurrent_calls_get_their_own_large_values(case):
    """Values share memory in turn, and none is overwritten before it was read."""
    assert case.run(large_values) == [True, True]
