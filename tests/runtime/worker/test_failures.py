"""A worker that ends, hangs, floods or sends garbage: one clear error for the caller, and the next call works."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from itertools import pairwise

import pytest

from tests.services.golden import sentence

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import Host, is_alive, make_spec, make_worker, run, until, verdict

BAD = """
from democrai_sandbox import sdk
import os, sys, time

@sdk.method("add")
def add(a, b=1):
    return a + b

@sdk.method("sleep")
def sleep(seconds=30.0):
    print("going to sleep", file=sys.stderr, flush=True)
    time.sleep(seconds)

@sdk.method("spin")
def spin():
    print("spinning", file=sys.stderr, flush=True)
    while True:
        pass

@sdk.method("exit")
def leave(how):
    if how == "sys.exit":
        sys.exit(3)
    if how == "os._exit":
        os._exit(3)
    raise KeyboardInterrupt

@sdk.method("odd")
def odd(what):
    return {"object": object(), "set": {1}, "nan": float("nan"), "key": {1: 2}, "big": 10**400,
            "huge": "x" * 2_000_000, "class": type("Text", (str,), {})("x")}[what]

@sdk.method("deep")
def deep():
    value = None
    for _ in range(200):
        value = [value]
    return value

@sdk.method("overflow")
def overflow():
    def further():
        return further()
    return further()

@sdk.method("break")
def broken():
    import ctypes
    ctypes.string_at(0)

@sdk.method("write")
def write(size):
    sys.stdout.write("x" * 100 + "\\n")
    for _ in range(size // 101):
        sys.stdout.write("y" * 100 + "\\n")
    sys.stdout.flush()
    return "written"
"""


def killed_story(world):
    worker, host = make_worker(world, BAD, allowed_imports=("ctypes",))
    ends = []
    worker.on_end = ends.append

    async def story():
        await worker.start()
        first = worker.pid
        calls = [asyncio.create_task(worker.call("method", "sleep")) for _ in range(3)]
        await until(lambda: host.text("stderr").count("going to sleep") == 3)
        os.kill(first, signal.SIGKILL)
        errors = await asyncio.gather(*calls, return_exceptions=True)
        told = {"errors": [str(error) for error in errors], "words": errors[0].diagnostics()}
        told["codes"] = sorted({error.code for error in errors})
        told["next"] = await worker.call("method", "add", {"a": 1})
        told["another"] = worker.pid != first
        told["starts"] = worker.starts
        pid = worker.pid
        os.kill(pid, signal.SIGTERM)
        await until(lambda: worker.pid is None)
        broken = await asyncio.gather(worker.call("method", "break"), return_exceptions=True)
        told["native"] = [str(broken[0]), "main.py" in broken[0].output]
        told["idle death"] = await worker.call("method", "add", {"a": 2})
        await worker.stop()
        told["gone"] = not is_alive(pid)
        told["ends"] = ends
        return told

    return run(story)


def test_a_worker_that_is_killed_fails_the_calls_in_it_and_is_started_again(case):
    """Errors name the signal and the last output on standard error: for native code, its location."""
    told = case.run(killed_story)
    assert told["errors"] == [told["errors"][0]] * 3
    assert told["codes"] == ["worker_crashed"]
    assert "SIGKILL" in told["errors"][0]
    sentence("killed worker", told["errors"][0])
    assert told["words"].splitlines()[1] == "  | going to sleep"
    crash, is_located = told["native"]
    assert crash == told["errors"][0].replace("SIGKILL", "SIGSEGV")
    assert is_located
    assert told["ends"] == ["engine:demo"] * 4
    assert (told["next"], told["another"], told["starts"], told["idle death"], told["gone"]) == (2, True, 2, 3, True)


ASYNC_BAD = """
from democrai_sandbox import sdk
import asyncio, time

@sdk.method("add")
async def add(a, b=1):
    return a + b

@sdk.method("sleep")
async def sleep():
    await asyncio.sleep(60)

@sdk.method("stubborn")
async def stubborn():
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            pass

@sdk.method("spin")
async def spin():
    while True:
        pass

@sdk.method("cancelled")
async def cancelled():
    raise asyncio.CancelledError

@sdk.method("stuck")
async def stuck():
    yield 1
    await asyncio.sleep(60)
"""


def hanging_story(world):
    plain, _ = make_worker(world, BAD)
    later, _ = make_worker(world, ASYNC_BAD, name="later", grace=30.0)  # time for calls to end by themselves
    hasty, _ = make_worker(world, ASYNC_BAD, name="later")

    async def late(worker, name):
        await worker.start()
        began, starts = time.monotonic(), worker.starts
        said = await verdict(worker.call("method", name, timeout=0.4))
        took = time.monotonic() - began
        after = await worker.call("method", "add", {"a": 1})
        return {"said": said, "took": took, "after": after, "started again": worker.starts - starts}

    async def innocent():
        """Make a call beside one that hangs, and one before the outcome of that is known."""
        await plain.start()
        hangs = asyncio.create_task(verdict(plain.call("method", "spin", timeout=0.4)))
        beside = asyncio.create_task(verdict(plain.call("method", "sleep")))
        await asyncio.sleep(0.55)
        comes = asyncio.create_task(verdict(plain.call("method", "add", {"a": 5})))
        return [(await hangs)[0], await beside, await comes]

    async def stream():
        for seconds in (0.4, 4, 20):  # longer if it had no time to print anything
            got = []
            try:
                async for item in later.stream("method", "stuck", timeout=seconds):
                    got.append(item)
            except Exception as error:
                told = [got, type(error).__name__, isinstance(error, TimeoutError)]
            if got:
                return told

    async def story():
        told = {"plain": await late(plain, "spin"), "later": await late(later, "sleep")}
        told["stubborn"], told["spin"] = await late(hasty, "stubborn"), await late(hasty, "spin")
        told["stream"] = await stream()
        told["cancelled"] = await verdict(later.call("method", "cancelled"))
        told["innocent"] = await innocent()
        for worker in (plain, later, hasty):
            await worker.stop()
        return told

    return run(story)


def test_a_call_that_takes_too_long_is_cancelled_and_if_need_be_its_process_ended(case):
    """A coroutine ends when it is canceled; a loop does not, and neither does a coroutine that ignores it."""
    told = case.run(hanging_story)
    for kind, label in (("plain", "demo"), ("later", "later"), ("stubborn", "later"), ("spin", "later")):
        error, text = told[kind]["said"]
        assert error == "WorkerTimeout"
        assert text.startswith(f"worker_timeout:engine:{label}: ")
        assert "0.4 s" in text
        assert told[kind]["after"] == 2
    sentence("call that was cancelled", told["later"]["said"][1])
    sentence("call whose process was ended", told["plain"]["said"][1])
    assert told["later"]["started again"] == 0
    for kind in ("plain", "stubborn", "spin"):
        assert told[kind]["started again"] == 1
        assert told[kind]["took"] > 0.6  # the timeout, and the grace period after it
    assert told["stream"] == [[1], "WorkerTimeout", True]
    kind, text = told["cancelled"]
    assert (kind, text.partition(":")[0]) == ("ExtensionFailed", "CancelledError")
    hangs, (beside, text), comes = told["innocent"]
    assert (hangs, beside) == ("WorkerTimeout", "WorkerCrashed")
    assert text.startswith("worker_crashed:engine:demo: ")
    sentence("call beside one that hangs", text)
    assert comes == 6


def values_story(world):
    worker, host = make_worker(world, BAD, largest_frame=1_000_000)

    async def story():
        whats = ("object", "set", "nan", "key", "big", "huge", "class")
        told = {what: await verdict(worker.call("method", "odd", {"what": what})) for what in whats}
        told["deep"] = await verdict(worker.call("method", "deep"))
        told["overflow"] = await verdict(worker.call("method", "overflow"))
        told["exit"] = [
            await verdict(worker.call("method", "exit", {"how": how})) for how in ("sys.exit", "os._exit", "")
        ]
        told["too much"] = await verdict(worker.call("method", "add", {"a": "x" * 1_000_000}))
        told["add"] = await worker.call("method", "add", {"a": 1})
        told["starts"] = worker.starts
        await worker.stop()
        return told

    return run(story)


def test_what_cannot_be_carried_or_must_not_happen_is_told_and_the_worker_goes_on(case):
    """Values that are not plain data are refused, and exits of the interpreter are errors of that call."""
    told = case.run(values_story)
    for what in ("object", "class", "set", "nan", "key", "big", "deep", "huge", "too much"):
        expected = "InvalidInputError" if what == "too much" else "ResultInvalid"  # the first is a parameter
        assert told[what][0] == expected, told[what]
    assert told["object"][1].endswith("object")
    assert told["class"][1].endswith("Text")
    for what, size in (("huge", 2_000_000), ("too much", 1_000_000)):
        sizes = [int(number) for number in re.findall(r"\d+", told[what][1])]
        assert size < sizes[0] < size + 1000
        assert sizes[1] == 1_000_000
    kind, text = told["overflow"]
    assert (kind, text.partition(":")[0]) == ("ExtensionFailed", "RecursionError")
    left, denied, interrupted = told["exit"]
    assert left == ["ExtensionFailed", "SystemExit: 3"]
    assert denied[0] == "SubprocessDenied"
    assert (interrupted[0], interrupted[1].partition(":")[0]) == ("ExtensionFailed", "KeyboardInterrupt")
    assert (told["add"], told["starts"]) == (2, 1)


def flood_story(world):
    worker, host = make_worker(world, BAD)

    async def story():
        await worker.start()
        turns = 0

        async def turn():
            nonlocal turns
            while True:
                await asyncio.sleep(0.002)
                turns += 1

        told = {"small": await worker.call("method", "write", {"size": 1000})}
        await until(lambda: host.text().count("y") >= 900)
        told["whole"] = host.text().count("x")
        turning = asyncio.create_task(turn())
        told["flood"] = await worker.call("method", "write", {"size": FLOOD}, timeout=40)
        told["turns"] = turns
        turning.cancel()
        await worker.stop()
        lines = "".join(text for _, text in host.written).splitlines()
        told["kept"] = sum(len(line) + 1 for line in lines if line.strip("xy") == "")
        told["left out"] = [
            [place, int(re.search(r"\d+", line)[0])] for place, line in enumerate(lines) if line.strip("xy")
        ]
        return told

    return run(story)


FLOOD = 2_000_000


def test_a_flood_of_output_is_cut_and_holds_nobody_up(case):
    """Dropped bytes are counted and reported, and the host's loop continues meanwhile."""
    told = case.run(flood_story)
    assert (told["small"], told["whole"], told["flood"]) == ("written", 100, "written")
    assert told["kept"] < FLOOD / 2
    written = sum((size // 101 + 1) * 101 for size in (1000, FLOOD))
    assert told["kept"] + sum(size for _, size in told["left out"]) == written
    assert all(after - before > 1 for (before, _), (after, _) in pairwise(told["left out"]))  # reported once per flood
    assert told["turns"] > 10  # one, if the loop waited for the writer


def starts_story(world):
    raising, _ = make_worker(world, "import os\nraise ImportError('today')\n", name="raising")
    syntax, _ = make_worker(world, "def\n", name="syntax")
    denied, _ = make_worker(world, "open('/etc/shadow')\n", name="denied")
    endless, _ = make_worker(world, "while True: pass\n", name="endless", start_timeout=0.8)
    nowhere, _ = make_worker(world, "", name="nowhere", interpreter="/nonexistent/python")
    wrong, _ = make_worker(world, "", name="wrong", interpreter="/bin/false")

    async def story():
        told = {}
        for name, worker in (
            ("raising", raising),
            ("syntax", syntax),
            ("denied", denied),
            ("endless", endless),
            ("nowhere", nowhere),
            ("wrong", wrong),
        ):
            told[name] = await verdict(worker.call("method", "add"))
        told["again"] = [await verdict(raising.call("method", "add")) for _ in range(3)]
        together = await asyncio.gather(*(verdict(wrong.call("method", "add")) for _ in range(4)))
        told["together"] = [len(set(map(tuple, together))), wrong.starts]
        while (said := await verdict(raising.call("method", "add")))[0] == "WorkerBroken":
            await asyncio.sleep(0.05)
        told["tried again"] = [said, raising.starts]
        for worker in (raising, syntax, denied, endless, nowhere, wrong):
            await worker.stop()
        return told

    return run(story)


def kept_errors(world):
    worker, _ = make_worker(world, "", interpreter="/nonexistent/python")

    async def story():
        before, errors = len(os.listdir("/proc/self/fd")), []
        for _ in range(3):
            try:
                await worker.start()
            except Exception as error:
                errors.append(error)
        told = [len(errors), len(os.listdir("/proc/self/fd")) - before]
        await worker.stop()
        return told

    return run(story)


def test_the_error_of_a_worker_that_cannot_start_keeps_no_descriptor(case):
    """The host may keep the error, and with it the frames of its traceback."""
    assert case.run(kept_errors) == [3, 0]


def test_a_worker_that_cannot_start_says_why_and_is_left_alone_for_a_while_after_three_times(case):
    """Errors of its import are reported as in process, and an import that never finishes is stopped."""
    told = case.run(starts_story)
    assert told["raising"] == ["ExtensionFailed", "ImportError: today"]
    kind, text = told["syntax"]
    assert (kind, text.partition(":")[0]) == ("ExtensionFailed", "SyntaxError")
    assert told["denied"] == ["FilesystemDenied", "sandbox_filesystem_denied:denied:/etc/shadow"]
    kinds = {"endless": "WorkerTimeout", "nowhere": "WorkerFailed", "wrong": "WorkerCrashed"}
    assert {name: told[name][0] for name in kinds} == kinds
    sentence("endless import", told["endless"][1])
    assert told["nowhere"][1].startswith("worker_failed:engine:nowhere: ")
    assert "/nonexistent/python" in told["nowhere"][1]
    sentence("exit code", told["wrong"][1])
    assert told["again"][:2] == [told["raising"]] * 2
    kind, text = told["again"][2]
    assert kind == "WorkerBroken"
    assert text.startswith("worker_broken:engine:raising: ")
    assert "ImportError: today" in text
    assert re.findall(r"\d+", text)[0] == "3"
    assert told["together"] == [1, 2]
    assert told["tried again"] == [told["raising"], 4]


def orphan_story(world):
    worker, host = make_worker(world, BAD)

    async def story():
        await worker.start()
        calls = asyncio.create_task(worker.call("method", "spin", timeout=100))
        await until(lambda: "spinning" in host.text("stderr"))
        print(worker.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    run(story)


def test_a_worker_ends_with_its_host_also_in_the_middle_of_a_call(case):
    """The end of the host closes its socket, which ends the worker."""
    with pytest.raises(AssertionError) as caught:
        case.run(orphan_story)
    lines = str(caught.value).splitlines()
    assert lines[0] == "exit -9"
    pid = int(lines[1])
    end = time.monotonic() + 30
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_alive(pid)


def nonsense_story(world):
    """Run processes that are not workers, but anything that a subject could make of one."""
    import socket
    import struct

    from democrai_sandbox.runtime.worker.codec import encode
    from democrai_sandbox.runtime.worker.handle import WorkerHandle

    ready = encode(
        ["ready", [["method", "add", {}, False, False, [], ""], ["method", "all", {}, False, True, [], ""]], False]
    )
    header = struct.Struct("!III")
    nonsense = {
        "bytes": b"\0" * 64,
        "text": header.pack(5, 0, 0) + b"hello",
        "large": header.pack(2**31, 2**31, 0),
        "deep": header.pack(400, 0, 0) + b"[" * 200 + b"]" * 200,
        "many": header.pack(3_600_001, 0, 0) + b"[" + b"[]," * 1_199_999 + b"[]]",
        "nan": header.pack(3, 0, 0) + b"NaN",
        "kind": encode(["surprise", 1]),
        "none": encode(None),
        "unknown call": encode(["done", 99, ["value", 1]]),
        "outcome": encode(["done", 1, ["denied", "Exception", {}]]),
        "no outcome": encode(["done", 1, None]),
        "item": encode(["item", 1, 5]),
        "question": encode(["ask", 1, ["whoever"], 1]),
        "another": encode(
            [
                "ask",
                1,
                [
                    "other",
                    "engine",
                    ["engine:other"],
                    "network",
                    "send",
                    "https://a.test",
                    True,
                    None,
                    None,
                    None,
                    "",
                    None,
                ],
                1,
            ]
        ),
        "inner": encode(
            [
                "ask",
                1,
                [
                    "other.x",
                    "tool",
                    ["engine:demo", "tool:other.x"],
                    "network",
                    "send",
                    "https://a.test",
                    True,
                    None,
                    None,
                    None,
                    "",
                    None,
                ],
                1,
            ]
        ),
        "door": encode(["door", 1, "echo", 1, None, []]),
        "door of another": encode(["door", 1, "echo", 1, [["engine:demo", "engine:other"], None, None, None, []], []]),
    }

    class Pretender:
        """A starter whose process only waits, while a thread of the test sends messages for it."""

        def __init__(self, says):
            self.says = says

        async def start(self, argv, *, env, pass_fds, cwd):
            from democrai_sandbox.runtime.worker.process import PlainStarter

            lane, control = (socket.socket(fileno=os.dup(number)) for number in pass_fds[:2])
            control.sendall(ready)

            async def speak():
                loop = asyncio.get_running_loop()
                lane.setblocking(False)
                await loop.sock_recv(lane, 100_000)
                await loop.sock_sendall(lane, self.says)
                lane.close()

            self.task = asyncio.create_task(speak())
            process = await PlainStarter().start(["/bin/sleep", "60"], env={}, pass_fds=(), cwd="/")
            self.kept = control
            return process

    async def story():
        told = {}
        for name, says in nonsense.items():
            host = Host(echo=lambda *args: list(args))
            worker = WorkerHandle(make_spec(world, call_timeout=30.0), host, starter=Pretender(says))
            said = await verdict(worker.call("method", "add", {"a": 1}))
            told[name] = [*said, len(host.questions)]
            await worker.stop()
            worker.starter.kept.close()
        return told

    return run(story)


def test_nonsense_from_a_worker_ends_it_with_one_error(case):
    """The host trusts no message on its sockets, and does not wait for more."""
    told = case.run(nonsense_story)
    assert {name: told[name][0] for name in told} == dict.fromkeys(told, "WorkerFailed")  # waiting would be a timeout
    assert [asked for _, _, asked in told.values()] == [0] * len(told)
    for name, (_, text, _) in told.items():
        sentence(f"nonsense: {name}", text)
