"""Limits of a worker's messages: frames at every limit, their cost, and floods that do not affect other workers."""

from __future__ import annotations

import asyncio
import gc
import os
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import Host, make_spec, make_worker, run, verdict

HEAD = struct.Struct("!III").pack
VALUES, DEPTH, BITS = 1_100_000, 72, 1024


def frame(text, raw=b"", blobs=0):
    """Return a frame of a text, which may be invalid."""
    return HEAD(len(text), len(raw), blobs) + text + raw


def read_all(data, **more):
    """Return the messages of some bytes."""
    from democrai_sandbox.runtime.worker.codec import CHUNK, FrameReader

    inbox, found, view = FrameReader(**more), [], memoryview(data)
    for start in range(0, len(data), CHUNK):
        piece = view[start : start + CHUNK]
        inbox.room[: len(piece)] = piece
        found += inbox.feed(len(piece))
    return found


def said(data, **more):
    """Return the number of messages in some bytes, or the name of the error."""
    try:
        return len(read_all(data, **more))
    except BaseException as error:
        return type(error).__name__


def nested(depth, opening=b"[", closing=b"]", inside=b""):
    return opening * depth + inside + closing * depth


REFUSED, READ, MORE_TO_COME = "FrameError", 1, 0
FRAMES = {
    # size, as announced and as sent
    "largest - 1": (lambda: frame(b'"' + b"x" * 997 + b'"'), READ),
    "largest": (lambda: frame(b'"' + b"x" * 998 + b'"'), READ),
    "largest + 1": (lambda: frame(b'"' + b"x" * 999 + b'"'), REFUSED),
    "largest with bytes": (lambda: frame(b'["t",[979],{"t":0}]' + b"", b"x" * 979, 1)[: 12 + 19 + 979], READ),
    "text and bytes above": (lambda: frame(b'["t",[983],{"t":0}]', b"x" * 983, 1), REFUSED),
    "announced above": (lambda: HEAD(1001, 0, 0), REFUSED),
    "announced as negative": (lambda: struct.pack("!iii", -1, 0, 0), REFUSED),
    "announced bytes as negative": (lambda: struct.pack("!iii", 1, -1, 0), REFUSED),
    "announced number as negative": (lambda: struct.pack("!iii", 1, 1, -1), REFUSED),
    "sum wraps": (lambda: HEAD(2**31, 2**31, 0), REFUSED),
    "cut in the header": (lambda: frame(b"1")[:11], MORE_TO_COME),
    "cut in the text": (lambda: frame(b"[1]")[:-1], MORE_TO_COME),
    "empty": (lambda: frame(b""), REFUSED),
    "announced too short": (lambda: HEAD(2, 0, 0) + b"[1]", REFUSED),
    # texts
    "text cut": (lambda: frame(b'"abc'), REFUSED),
    "text cut in an escape": (lambda: frame(b'"abc\\'), REFUSED),
    "text cut in a number": (lambda: frame(b'"abc\\u00'), REFUSED),
    "escape of the end": (lambda: frame(b'"abc\\"'), REFUSED),
    "unknown escape": (lambda: frame(b'"\\x41"'), REFUSED),
    "escape with a sign": (lambda: frame(b'"\\u+041"'), REFUSED),
    "half a pair": (lambda: frame(b'"\\ud800"'), REFUSED),
    "second half first": (lambda: frame(b'"\\udc00\\ud800"'), REFUSED),
    "half a pair and a letter": (lambda: frame(b'"\\ud800\\u0041"'), REFUSED),
    "a pair": (lambda: frame(b'"\\ud83d\\ude00"'), READ),
    "not UTF-8": (lambda: frame(b'"\xff\xfe"'), REFUSED),
    "UTF-8": (lambda: frame('"é"'.encode()), REFUSED),
    "control character": (lambda: frame(b'"\n"'), REFUSED),
    "null byte": (lambda: frame(b'"\0"'), REFUSED),
    "null bytes": (lambda: frame(b"\0" * 100), REFUSED),
    # numbers
    "most bits": (lambda: frame(str(2**BITS - 1).encode()), READ),
    "most bits below zero": (lambda: frame(str(1 - 2**BITS).encode()), READ),
    "more bits": (lambda: frame(str(2**BITS).encode()), REFUSED),
    "320 digits": (lambda: frame(b"9" * 320), REFUSED),
    "321 digits": (lambda: frame(b"9" * 321), REFUSED),
    "digits of a fraction": (lambda: frame(b"0." + b"3" * 318), READ),
    "more digits of a fraction": (lambda: frame(b"0." + b"3" * 319), REFUSED),
    "nan": (lambda: frame(b"[NaN]"), REFUSED),
    "infinity": (lambda: frame(b"-Infinity"), REFUSED),
    "infinite exponent": (lambda: frame(b"1e999"), REFUSED),
    "largest exponent": (lambda: frame(b"1e308"), READ),
    "exponent without digits": (lambda: frame(b"1e"), REFUSED),
    "leading zero": (lambda: frame(b"01"), REFUSED),
    "sign alone": (lambda: frame(b"-"), REFUSED),
    "plus": (lambda: frame(b"+1"), REFUSED),
    "fraction without digits": (lambda: frame(b"1."), REFUSED),
    "hexadecimal": (lambda: frame(b"0x10"), REFUSED),
    "underscore": (lambda: frame(b"1_0"), REFUSED),
    # lists and objects
    "deepest": (lambda: frame(nested(DEPTH)), READ),
    "deeper": (lambda: frame(nested(DEPTH + 1)), REFUSED),
    "deepest objects": (lambda: frame(nested(DEPTH, b'{"a":', b"}", b"1")), READ),
    "deeper objects": (lambda: frame(nested(DEPTH + 1, b'{"a":', b"}", b"1")), REFUSED),
    "never closed": (lambda: frame(b"[" * 900), REFUSED),
    "closed otherwise": (lambda: frame(b"[1}"), REFUSED),
    "only closed": (lambda: frame(b"]"), REFUSED),
    "comma at the end": (lambda: frame(b"[1,]"), REFUSED),
    "comma first": (lambda: frame(b"[,1]"), REFUSED),
    "key twice": (lambda: frame(b'{"a":1,"a":2}'), REFUSED),
    "key twice, written otherwise": (lambda: frame(b'{"a":1,"\\u0061":2}'), REFUSED),
    "key that is a number": (lambda: frame(b"{1:2}"), REFUSED),
    "key without a value": (lambda: frame(b'{"a"}'), REFUSED),
    "two messages": (lambda: frame(b"1 2"), REFUSED),
    "white space": (lambda: frame(b" 1"), REFUSED),
    "unknown word": (lambda: frame(b"nul"), REFUSED),
    "longer word": (lambda: frame(b"nulls"), REFUSED),
    # bytes
    "bytes without a place": (lambda: frame(b"1", b"x"), REFUSED),
    "bytes without sizes": (lambda: frame(b"1", b"x", 1), REFUSED),
    "size below zero": (lambda: frame(b'["t",[-1,2],{"t":0}]', b"x", 2), REFUSED),
    "size beyond the frame": (lambda: frame(b'["t",[2],{"t":0}]', b"x", 1), REFUSED),
    "huge size": (lambda: frame(b'["t",[%d],{"t":0}]' % 2**64, b"x", 1), REFUSED),
    "size that is a text": (lambda: frame(b'["t",["1"],{"t":0}]', b"x", 1), REFUSED),
    "size that is true": (lambda: frame(b'["t",[true],{"t":0}]', b"x", 1), REFUSED),
    "bytes left over": (lambda: frame(b'["t",[1],{"t":0}]', b"xy", 1), REFUSED),
    "fewer sizes": (lambda: frame(b'["t",[1],{"t":0}]', b"x", 2), REFUSED),
    "number beyond": (lambda: frame(b'["t",[1],{"t":1}]', b"x", 1), REFUSED),
    "number below zero": (lambda: frame(b'["t",[1],{"t":-1}]', b"x", 1), REFUSED),
    "huge number": (lambda: frame(b'["t",[1],{"t":%d}]' % 2**64, b"x", 1), REFUSED),
    "number that is a text": (lambda: frame(b'["t",[1],{"t":"0"}]', b"x", 1), REFUSED),
    "number that is a list": (lambda: frame(b'["t",[1],{"t":[]}]', b"x", 1), REFUSED),
    "more after the message": (lambda: frame(b'["t",[1],{"t":0},1]', b"x", 1), REFUSED),
    "bytes twice": (lambda: frame(b'["t",[1],[{"t":0},{"t":0}]]', b"x", 1), READ),
}
MANY = {
    "most values": (lambda: frame(b"[" + b"0," * (VALUES - 2) + b"0]"), READ),
    "more values": (lambda: frame(b"[" + b"0," * (VALUES - 1) + b"0]"), REFUSED),
    "more lists": (lambda: frame(b"[" + b"[]," * (VALUES - 1) + b"[]]"), REFUSED),
    "very deep": (lambda: frame(nested(1_000_000)), REFUSED),
    "many blobs": (lambda: frame(b'["t",[' + b"0," * (VALUES + 1) + b"0],0]", b"", VALUES + 2), REFUSED),
}


def limits(world):
    told = {name: [said(make(), largest=1000), wanted] for name, (make, wanted) in FRAMES.items()}
    return told | {name: [said(make()), wanted] for name, (make, wanted) in MANY.items()}


def test_frames_at_every_limit_are_read_or_refused_as_frames(case):
    """Below, at and above each limit; cut off, doubled, of other types: always the same kind of error."""
    told = case.run(limits)
    assert {name: found for name, (found, wanted) in told.items() if found != wanted} == {}


def costs(world):
    """Return the processor time of reading each frame, the best of three."""
    size = 1_200_000
    pattern = lambda text: (text * (size // len(text) + 1))[:size]
    frames = {
        "valid: numbers": b"[" + pattern(b"1,2,")[:-1].rstrip(b",") + b"]",
        "valid: escapes": b'"' + pattern(b"\\n") + b'"',
        "open text of escapes": b"," * 1_100_001 + b'\\"' * 50_000,
        "text of escapes": b'"' + pattern(b'\\"'),
        "quotes": pattern(b'"'),
        "quotes in a list": b"[" + pattern(b'"",'),
        "backslashes": pattern(b"\\"),
        "commas": pattern(b","),
        "digits": pattern(b"1"),
        "long numbers": b"[" + pattern(b"1" * 4300 + b","),
        "numbers at the limit": b"[" + pattern(b"1" * 308 + b",")[:-1].rstrip(b",") + b"]",
        "fractions": b"[" + pattern(b"." + b"1" * 100 + b","),
        "brackets": pattern(b"["),
        "brackets and quotes": pattern(b'["'),
        "one key": b"{" + pattern(b'"a":1,'),
        "surrogates": b'"' + pattern(b"\\ud800"),
    }
    told = {}
    for name, text in frames.items():
        data, times = frame(text), []
        for _ in range(3):
            begin = time.process_time()
            said(data)
            times.append(time.process_time() - begin)
            if times[-1] > 2:
                break
        told[name] = min(times)
    return told


def test_a_hostile_frame_costs_no_more_than_a_valid_one_of_its_size(case):
    """Also one on which a search for the end of a text would restart at each quote."""
    told = case.run(costs)
    valid = max(told.pop("valid: numbers"), told.pop("valid: escapes"))
    assert {name: cost for name, cost in told.items() if cost > 3 * valid + 0.01} == {}


def sharing(world):
    """Read large frames on a thread; return the largest fraction of that time for which the loop had to wait."""
    frames = {
        "values": frame(b"[" + b"[0]," * 300_000 + b"0]"),
        "numbers": frame(b"[" + (b"1" * 300 + b",") * 100_000 + b"0]"),
        "text": frame(b'"' + b"x" * 40_000_000 + b'"'),
        "escapes": frame(b'"' + b"\\u00e9" * 6_000_000 + b'"'),
    }

    async def story():
        told = {}
        for name, data in frames.items():
            begin = last = time.perf_counter()
            reading, longest = asyncio.create_task(asyncio.to_thread(said, data)), 0.0
            while not reading.done():
                await asyncio.sleep(0)
                now = time.perf_counter()
                longest, last = max(longest, now - last), now
            told[name] = [await reading, longest / (time.perf_counter() - begin)]
        return told

    return run(story)


def test_reading_a_large_frame_lets_other_threads_run(case):
    """Tens of thousands of values, long numbers and long texts do not block the event loop."""
    told = case.run(sharing)
    assert {name: found for name, (found, _) in told.items() if found != 1} == {}
    assert {name: part for name, (_, part) in told.items() if part > 0.5} == {}


# ---- floods ----------------------------------------------------------------------------------------------------------

FLOOD = """
import socket, struct, sys, time
lane, control = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
def frame(text):
    text = text.replace(b"engine:%s", b"engine:" + sys.argv[3].encode())
    return struct.pack("!III", len(text), 0, 0) + text
flood = {
    "tiny": lambda: frame(b'["denied",["failed","","",""]]') * 5000,
    "doors": lambda: frame(b'["door",1,"echo",1,[["engine:%s"],null,null,null,[]],[]]') * 100,
    "values": lambda: frame(b'["door",1,"echo",1,[["engine:%s"],null,null,null,[]],[[' + b"[]," * 1000000 + b"0]]]"),
}[sys.argv[3]]()
control.sendall(frame(b'["ready",[["method","add",{},false,false,[],""]],false]'))
lane.recv(100000)
try:
    while True:
        lane.sendall(flood)
except OSError:
    pass
time.sleep(60)
"""


class Flooder:
    """A starter of a process that floods the host once it is called."""

    def __init__(self, kind):
        self.kind = kind

    async def start(self, argv, *, env, pass_fds, cwd):
        from democrai_sandbox.runtime.worker.process import PlainStarter

        command = [sys.executable, "-I", "-S", "-c", FLOOD, *map(str, pass_fds[:2]), self.kind]
        return await PlainStarter().start(command, env={}, pass_fds=pass_fds, cwd="/")


async def turns(stop):
    """Return the maximum processor time that this thread used between two turns of the loop."""
    most, last = 0.0, time.thread_time()
    while not stop.is_set():
        await asyncio.sleep(0.001)
        now = time.thread_time()
        most, last = max(most, now - last), now
    return most


def cost_of_values():
    """Return the processor time of reading and dropping a frame of the flood of values."""
    data, times = frame(b'["door",1,"echo",1,[],[[' + b"[]," * 1_000_000 + b"0]]]"), []
    for _ in range(3):
        begin = time.thread_time()
        said(data)
        times.append(time.thread_time() - begin)
    return max(times)


def floods(world):
    from democrai_sandbox.runtime.worker.handle import WorkerHandle

    gc.disable()  # a full collection visits all live objects, on the thread where it happens to start

    def flooding(kind):
        host = Host(echo=lambda *args: len(args))
        return WorkerHandle(make_spec(world, name=kind, call_timeout=45.0), host, starter=Flooder(kind))

    async def story():
        quiet, _ = make_worker(world, name="quiet")
        await quiet.start()
        stop = asyncio.Event()
        watching = asyncio.create_task(turns(stop))
        workers = {kind: flooding(kind) for kind in ("tiny", "doors", "values")}
        ends, served = {}, 0
        for kind, worker in workers.items():
            call = asyncio.create_task(verdict(worker.call("method", "add", {"a": 1})))
            while not call.done():
                served += await quiet.call("method", "add", {"a": 0}, timeout=40.0)
            ends[kind] = (await call)[0]
        stop.set()
        told = [ends, await watching, cost_of_values(), served, quiet.starts]
        for worker in (quiet, *workers.values()):
            await worker.stop()
        return told

    return run(story, seconds=200)


def test_a_worker_that_floods_is_ended_and_others_are_served(case):
    """Its caller gets one specific error; others are served meanwhile, and the loop is never blocked for long."""
    ends, longest, cost, served, starts = case.run(floods)
    # A host that is too busy to read a flood slows it down, until the call's own timeout.
    assert set(ends.values()) <= {"WorkerFlooded", "CallTimeout"} and "WorkerFlooded" in ends.values()
    assert longest < cost / 2  # of processor time: the loop reads none of these frames itself
    assert served > 20
    assert starts == 1


# ---- bytes values in shared memory that arrive late, or never --------------------------------------------------------

LATE = """
import mmap, os, socket, struct, sys, time
lane, control, memory = map(int, sys.argv[1:4])
lane, control = socket.socket(fileno=lane), socket.socket(fileno=control)
def frame(text, size=0, flags=0):
    return struct.pack("!III", len(text), size, flags) + text
control.sendall(frame(b'["ready",[["method","add",{},false,false,[],""]],false]'))
lane.recv(100000)
lane.sendall(frame(b'["t",[1000000],["done",1,["value",{"t":0}]]]', 1000000, 1 << 31 | 1))
time.sleep(0.3)
if sys.argv[4] == "gone":
    os._exit(3)
if sys.argv[4] == "late":
    with mmap.mmap(memory, 8 << 20) as both:
        both[4 << 20 : (4 << 20) + 8] = struct.pack("=Q", 1000000)
time.sleep(60)
"""


class LateWriter:
    """A starter of a process that announces bytes values before they are in the memory."""

    def __init__(self, kind):
        self.kind = kind

    async def start(self, argv, *, env, pass_fds, cwd):
        from democrai_sandbox.runtime.worker.process import PlainStarter

        command = [sys.executable, "-I", "-S", "-c", LATE, *map(str, pass_fds), self.kind]
        return await PlainStarter().start(command, env={}, pass_fds=pass_fds, cwd="/")


def late_values(world):
    from democrai_sandbox.runtime.worker.handle import WorkerHandle

    async def story():
        stop = asyncio.Event()
        watching = asyncio.create_task(turns(stop))
        ends = {}
        for kind in ("late", "never", "gone"):
            worker = WorkerHandle(make_spec(world, name=kind, call_timeout=2.0), Host(), starter=LateWriter(kind))
            ends[kind] = await verdict(worker.call("method", "add", {"a": 1}))
            await worker.stop()
        stop.set()
        ends["late"] = ends["late"] == bytes(1_000_000)
        return [ends, await watching]

    return run(story)


def test_values_that_arrive_late_or_never_hold_up_only_their_own_call(case):
    """The loop looks for them again and again, and serves others meanwhile."""
    ends, longest = case.run(late_values)
    assert ends.pop("late") is True
    assert {kind: end[0] for kind, end in ends.items()} == {"never": "WorkerTimeout", "gone": "WorkerCrashed"}
    assert longest < 0.2
