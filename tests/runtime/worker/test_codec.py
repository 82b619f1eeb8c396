"""Frames: decoding restores the message, in pieces of any size; malformed frames are refused cheaply."""

from __future__ import annotations

import errno
import random
import struct


def read_all(data, step=None, **more):
    """Return the messages of bytes that arrive in pieces."""
    from democrai_sandbox.runtime.worker.codec import CHUNK, FrameReader

    inbox, found = FrameReader(**more), []
    step = min(step or CHUNK, CHUNK)
    for start in range(0, len(data), step):
        piece = data[start : start + step]
        while piece:  # the room for the rest of a large frame ends with the frame
            taken = min(len(piece), len(inbox.room))
            inbox.room[:taken] = piece[:taken]
            found += inbox.feed(taken)
            piece = piece[taken:]
    return found


def value(source, depth=0):
    """Return some plain data."""
    kind = source.randrange(9 if depth < 5 else 6)
    if kind == 0:
        return source.choice([None, True, False])
    if kind == 1:
        return source.choice([0, -1, 2**63, -(2**1000), source.randrange(10**9)])
    if kind == 2:
        return source.choice([0.0, -0.5, 1e300, 5e-324, source.random()])
    if kind in {3, 4}:
        pieces = ["a", "\0", "\0bytes", '"', "\\", "\u2028", "😀", ",", "[", "\x7f"]
        return "".join(source.choice(pieces) for _ in range(source.randrange(6)))
    if kind == 5:
        return source.randbytes(source.choice([0, 1, 30]))
    items = [value(source, depth + 1) for _ in range(source.randrange(5))]
    if kind == 6:
        return items
    keys = ["a", "", "\0bytes", "\0bytes_", "b", "\0"]
    return {source.choice(keys): item for item in items}


def trips(world):
    from democrai_sandbox.runtime.worker.codec import encode

    source = random.Random(5)
    values = [value(source) for _ in range(500)]
    for key in ("\0bytes", "\0b"):
        values += [{key: 0}, {key: 0, "b": b"x"}, [{key: b""}], [key, b"y"], [b"x", {key: 0}], [b"", {"a" + key: b"z"}]]
    values += [b"", [b"", b"x"], [b"x"] * 16, [b"x"] * 17, [b"x" * 10_000] * 16]
    frames = [encode(item) for item in values]
    together = b"".join(frames)
    differing = [index for index, item in enumerate(values) if read_all(frames[index]) != [item]]
    return {
        "differing": differing,
        "together": read_all(together) == values,
        "pieces": read_all(together[:60_000], 1) == read_all(together[:60_000]),
        "odd pieces": read_all(together, 7919) == values,
        "tuples": read_all(encode((1, (2, b"3")))) == [[1, [2, b"3"]]],
        "large": read_all(encode({"a": b"x" * 10_000_000, "b": "y" * 1_000_000}))[0]["a"] == b"x" * 10_000_000,
        "raw": len(encode(b"x" * 1_000_000)) < 1_000_200,
    }


def test_plain_data_comes_out_as_it_went_in(case):
    """Including keys that look like the codec's own, empty bytes, and all cuts between pieces."""
    told = case.run(trips)
    assert told.pop("differing") == []
    assert all(told.values()), told


def small(world):
    """Compare small frames with those of the writer in Python."""
    import enum
    import json

    from democrai_sandbox.guard import small_frame

    def framed(item):
        text = json.dumps(item, separators=(",", ":")).encode()
        return struct.pack("!III", len(text), 0, 0) + text

    class Text(str):
        __slots__ = ()

    class Number(enum.IntEnum):
        ONE = 1

    source = random.Random(7)
    samples = [value(source) for _ in range(2000)]
    values = [item for item in samples if "b'" not in repr(item) and 'b"' not in repr(item)]
    values += ["".join(map(chr, range(0xD800))), "\U0001f600\uffff\U0010ffff", "x" * 8178, (1, ("2",)), 2**63 - 1]
    values += [1e16, 1.0, -0.0, 1e-7, [[[]] * 10], {"": {}}, {}, []]
    long = "".join(map(chr, range(0xD800)))
    unusual = [[b""] * 17, [b"", {"\0b": 1}]]
    unusual += [float("nan"), float("-inf"), "\ud800", ["\udfff"], {1: 2}, {None: 1}, {"\ud800": 1}, {1}]
    unusual += [Text("a"), [Text("a")], {Text("a"): 1}, Number.ONE, 2**63, "x" * 8179, long, object(), range(3)]
    deep = []
    for _ in range(65):
        deep = [deep]
    differing = [item for item in values if item != long and small_frame(item) not in (framed(item), None)]
    left = [item for item in values if item != long and small_frame(item) is None]
    return {
        "differing": differing,
        "left": [item for item in left if str(2**1000) not in repr(item) and str(2**63) not in repr(item)],
        "written": sum(small_frame(item) is not None for item in values) > 500,
        "unusual": [repr(item) for item in [*unusual, deep] if small_frame(item) is not None],
        "bytes": small_frame([b"ab", {"a": b""}])
        == (b'["\\u0000b",[2,0],[{"\\u0000b":0},{"a":{"\\u0000b":1}}]]', [b"ab", b""], 2),
        "points": [point for point in range(0xD800) if small_frame(chr(point)) != framed(chr(point))],
    }


def test_small_frame_is_what_the_other_writer_makes(case):
    """Values that are not plain, or not small, are left to it."""
    expected = {"differing": [], "left": [], "written": True, "unusual": [], "bytes": True, "points": []}
    assert case.run(small) == expected


def refusals(world):
    from democrai_sandbox.errors.extensions import FrameError
    from democrai_sandbox.policy import InvalidInputError
    from democrai_sandbox.runtime.worker.codec import encode

    def outcome(function, *args, **kwargs):
        try:
            return repr(function(*args, **kwargs))[:60]
        except (InvalidInputError, FrameError) as error:
            return [type(error).__name__, str(error)]

    head = struct.Struct("!III").pack
    deep = lambda depth: b"[" * depth + b"]" * depth
    frame = lambda text, raw=b"", blobs=0: head(len(text), len(raw), blobs) + text + raw
    told = {
        "object": outcome(encode, ["call", {"a": [1, object()]}]),
        "infinite": outcome(encode, float("inf")),
        "key": outcome(encode, {1: 2}),
        "subclass": outcome(encode, type("Sub", (dict,), {})()),
        "too large": outcome(encode, b"x" * 100, largest=50),
    }
    wrong = {
        "announced": head(2**32 - 1, 0, 0),
        "announced raw": head(1, 2**32 - 1, 0),
        "blobs": head(1, 1, 2**32 - 1),
        "no json": frame(b"hello"),
        "empty": frame(b""),
        "two": frame(b"1 2"),
        "not ascii": frame(b'"\xff"'),
        "deep": frame(deep(100)),
        "very deep": frame(deep(1_000_000)),
        "many": frame(b"[" + b"0," * 1_200_000 + b"0]"),
        "digits": frame(b"1" * 10_000),
        "nan": frame(b"[NaN]"),
        "infinity": frame(b"-Infinity"),
        "raw without a place": frame(b"1", b"x"),
        "no sizes": frame(b"1", b"x", 1),
        "wrong sizes": frame(b'["t",[2],{"t":0}]', b"x", 1),
        "negative": frame(b'["t",[-1,2],{"t":0}]', b"x", 2),
        "other number": frame(b'["t",[1],{"t":1}]', b"x", 1),
        "text for number": frame(b'["t",[1],{"t":"0"}]', b"x", 1),
    }
    told |= {name: outcome(read_all, data) for name, data in wrong.items()}
    told["commas in a text"] = outcome(read_all, encode("," * 2_000_000))[:20]
    source, odd = random.Random(7), set()
    sound = encode({"a": [1, b"xyz", "text"], "b": None})
    for _ in range(3_000):
        data = bytearray(sound if source.random() < 0.7 else source.randbytes(source.randrange(60)))
        for _ in range(source.randrange(4)):
            if data:
                data[source.randrange(len(data))] = source.randrange(256)
        try:
            read_all(bytes(data), largest=10_000)
        except FrameError:
            pass
        except BaseException as error:
            odd.add(type(error).__name__)
    told["odd"] = sorted(odd)
    return told


def test_what_is_no_frame_is_refused_as_that_and_what_is_not_plain_by_its_place(case):
    """Announced sizes are checked, depth and number of values limited, and all malformed frames give the same error."""
    told = case.run(refusals)
    assert told.pop("odd") == []
    assert told.pop("commas in a text") == "[',,,,,,,,,,,,,,,,,,"
    kind, text = told.pop("object")
    assert kind == "InvalidInputError"
    assert text.startswith("/1/a/1: ") and text.endswith("object")
    assert [told.pop(name)[0] for name in ("infinite", "key", "subclass", "too large")] == ["InvalidInputError"] * 4
    assert [name for name, said in told.items() if said[0] != "FrameError"] == []


def shared_trips(world):
    import os

    from democrai_sandbox.errors.extensions import FrameError
    from democrai_sandbox.runtime.worker.codec import FrameReader, SharedMemory, encode_parts

    ours = SharedMemory.create()
    theirs = SharedMemory(os.dup(ours.descriptor), host=False)
    to_worker, to_host = FrameReader(shared=theirs), FrameReader(shared=ours)

    def send(message, shared, inbox):
        """Return the message as the other side reads it, and the bytes that its socket carries."""
        data, found, at = b"".join(encode_parts(message, shared=shared)), [], 0
        shared.write()
        while piece := data[at : at + len(inbox.room)]:
            inbox.room[: len(piece)] = piece
            found += inbox.feed(len(piece))
            at += len(piece)
        return found, len(data)

    def lie(text, rest, blobs, inbox):
        frame = struct.pack("!III", len(text), rest, blobs) + text
        inbox.room[: len(frame)] = frame
        try:
            return repr(inbox.feed(len(frame)))
        except FrameError:
            return "FrameError"

    large = [[b"a" * 100_000, "text", b"", b"b" * 900_000]]
    first = send(large, ours, to_worker)
    unread = send(large, theirs, to_host), send(large, ours, to_worker)
    again = send([1], theirs, to_host), send(large, ours, to_worker)
    told = {
        "first": [first[0] == [large], first[1] < 1_000],
        "both ways": [unread[0][0] == [large], unread[0][1] < 1_000],
        "again": [unread[1][0] == [large], unread[1][1] < 1_000],
        "after a small answer": [again[0][0] == [[1]], again[1][0] == [large], again[1][1] < 1_000],
        "before an answer": [send(large, ours, to_worker)[1] > 900_000],
        "too large for it": [send([b"x" * 5_000_000], theirs, to_host)[1] > 4_900_000],
        "sealed": [],
    }
    for size in (0, 1 << 30):
        try:
            os.ftruncate(ours.descriptor, size)
        except PermissionError:
            told["sealed"].append(True)
    sizes = b'["t",[9000000],{"t":0}]'
    told["lies"] = [
        lie(sizes, 9_000_000, 1 << 31 | 1, FrameReader(shared=ours)),
        lie(b'["t",[50000],{"t":0}]', 50_000, 1 << 31 | 1, FrameReader()),
        lie(b"1", 0, 1 << 30, FrameReader()),
        lie(b'["t",[50001],{"t":0}]', 50_000, 1 << 31 | 1, FrameReader(shared=ours)),
    ]
    return told


def kept_frames(world):
    """Keep frames while more bytes are received into the same buffer."""
    import os

    from democrai_sandbox.runtime.worker.codec import FrameReader, SharedMemory, decode, encode_parts

    ours = SharedMemory.create()
    theirs = SharedMemory(os.dup(ours.descriptor), host=False)
    told = {}
    for name, message in {"small": ["a", b"b"], "in memory": ["a", b"b" * 100_000], "text": ["a" * 50_000]}.items():
        inbox, data = FrameReader(shared=ours), b"".join(encode_parts(message, shared=theirs))
        theirs.write()
        inbox.room[: len(data)] = data
        inbox.add(len(data))
        frame = inbox.next().kept()
        inbox.keep()
        inbox.room[:] = bytes(len(inbox.room))
        told[name] = decode(frame)[0] == message
    return told


def test_a_kept_frame_does_not_change_when_more_is_received(case):
    """The host keeps a frame of a worker that has used up its budget, and receives meanwhile."""
    assert case.run(kept_frames) == {"small": True, "in memory": True, "text": True}


def sent_by_finalizers(world):
    """Send messages while garbage collections run finalizers that send others."""
    import gc
    import socket
    import threading

    from democrai_sandbox.runtime.worker.codec import LARGEST
    from democrai_sandbox.runtime.worker.host_client import WorkerSocket

    ours, theirs = socket.socketpair()
    line, message, begun = WorkerSocket(theirs.detach(), LARGEST), [[[]] * 20_000], []

    class Circle:
        def __init__(self):
            self.own = self

        def __del__(self):
            begun.append(True)
            line.send(["finalizer"])

    def drain():
        while ours.recv(1 << 20):
            pass

    def send():
        for count in range(0, 700, 50):
            gc.collect()
            Circle()
            junk = [[] for _ in range(count)]
            line.send(message)
            del junk

    threading.Thread(target=drain, daemon=True).start()
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(20)
    return [sender.is_alive(), len(begun) > 0]


def test_finalizers_may_send_while_a_message_is_encoded(case):
    """A garbage collection can happen while a message is encoded, and no lock is held then."""
    assert case.run(sent_by_finalizers) == [False, True]


def no_more_descriptors(world):
    """Create memory while only one more descriptor may be opened."""
    import os
    import resource

    from democrai_sandbox.runtime.worker.codec import SharedMemory

    held, before = [], resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    told = []
    try:
        while True:
            held.append(os.dup(0))
    except OSError:
        os.close(held.pop())
    try:
        for _ in range(2):
            try:
                SharedMemory.create()
            except OSError as error:
                told.append(error.errno)
        held.append(os.dup(0))
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    return told


def test_memory_that_cannot_be_mapped_leaves_no_descriptor(case):
    """Mapping it needs a second descriptor."""
    assert case.run(no_more_descriptors) == [errno.EMFILE] * 2


def test_large_values_are_passed_in_shared_memory(case):
    """One frame at a time in each direction, until the other side has read it; the socket carries all others."""
    told = case.run(shared_trips)
    lies = told.pop("lies")
    assert {name: all(results) and results != [] for name, results in told.items()} == dict.fromkeys(told, True)
    assert lies == ["FrameError"] * 4


def followed_values(world):
    """Read values in shared memory before and while they are written."""
    import os
    import threading
    import time

    from democrai_sandbox.runtime.worker.codec import FrameReader, SharedMemory, decode, encode_parts

    ours = SharedMemory.create()
    theirs = SharedMemory(os.dup(ours.descriptor), host=False)
    message = [os.urandom(300_000), "text", os.urandom(3_000_000)]
    told = {}

    def frame_in(inbox):
        data = b"".join(encode_parts(message, shared=theirs))
        inbox.room[: len(data)] = data
        inbox.add(len(data))
        return inbox.next()

    def write_late():
        time.sleep(0.05)
        theirs.write()

    frame = frame_in(FrameReader(shared=ours))
    try:
        decode(frame)
    except BlockingIOError:
        told["before"] = True
    theirs.write()
    told["after"] = decode(frame)[0] == message
    ours.release(frame)
    encode_parts("small", shared=ours)  # returns the half that was read
    theirs.is_free = True
    later = frame_in(FrameReader(shared=ours))
    threading.Thread(target=write_late).start()
    told["waiting"] = decode(later, waits=True)[0] == message
    return told


def test_values_are_read_while_they_are_written(case):
    """A reader that must not wait gets an error that is not about the frame; another one waits."""
    assert case.run(followed_values) == {"before": True, "after": True, "waiting": True}
