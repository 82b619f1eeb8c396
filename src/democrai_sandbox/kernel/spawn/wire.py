"""What the application and the spawn server say to each other. Standard library only: the server loads this file alone.

A request is one packet on the link. Its first descriptor is the requester's lifeline, on which the answer goes back:
requests of several threads need no order among themselves, and what a stranger sends on an inherited link never
reaches the application as an answer. A body too large for a packet is the second descriptor, a sealed memfd.

An order is numbers, a filter, and texts with a null byte between them: reading it takes a fraction of what JSON takes,
and it is read between somebody's asking for a program and its start. Everything else is JSON.

What the application's side needs of the interpreter is held by its name: a subject in its process could replace it.
"""

from __future__ import annotations

import fcntl
import json
import operator
import struct
import sys
from array import array
from fcntl import fcntl as control
from os import MFD_ALLOW_SEALING, MFD_CLOEXEC, close, fstat, memfd_create, pread, write
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDER = b"S"
JSON = b"J"
IN_FILE = b"M"
"""How a body begins: what it is, or that it is elsewhere."""
LARGEST_INLINE = 48 * 1024
LARGEST_BODY = 8 * 1024 * 1024
LARGEST_ANSWER = 64 * 1024
MOST_DESCRIPTORS = 250
"""The kernel takes 253 in one packet."""
_ADD_SEALS = fcntl.F_ADD_SEALS
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
NOTHING = -1
"""In place of a descriptor: /dev/null as a standard stream, none as a cgroup. As a umask: the application's."""

CHILD_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
"""What a child of root keeps: CHOWN, DAC_OVERRIDE, FOWNER, FSETID. By others it could look into other processes."""

STATUS = struct.Struct("=i?")
"""How a child ended, told on its lifeline: the return code, negative for a signal; whether its time was up."""

_STARTED = struct.Struct("=ci")
"""The answer to an order that was carried out: its form and the pid; paths that are missing follow."""
_SIZES = struct.Struct("=cII")
"""The form, how many numbers follow, and how many bytes of filter after them."""
_WIDTH = 8
_ENCODING = sys.getfilesystemencoding()
_LAST_SIGNAL = 64
_HIGHEST_PORT = 65535
_HIGHEST_RESOURCE = 15
_FIRST_TARGET, _HIGHEST_TARGET = 3, 1 << 20
_ALL_BITS = (1 << 63) - 1
_MICROSECONDS = 1_000_000
_MOST_WALL_SECONDS = 10 * 365 * 24 * 3600
_LARGEST_FILTER = 4096 * 8

# Each with its lowest and highest value; an index is checked against the descriptors that came along.
_COUNTS = ("argv", "env", "paths", "ports", "limits", "pass_fds")
_INDEXES = ("stdin", "stdout", "stderr", "cgroup")
_VALUES = {
    "umask": (NOTHING, 0o777),
    "caps": (0, _ALL_BITS),
    "wall": (0, _MOST_WALL_SECONDS * _MICROSECONDS),
    "has_plan": (0, 1),
    "fs": (0, _ALL_BITS),
    "net": (0, _ALL_BITS),
    "scoped": (0, _ALL_BITS),
    "own_proc": (0, _ALL_BITS),
    "exact": (0, 1),
}
_LOWEST = [low for low, _ in _VALUES.values()]
_HIGHEST = [high for _, high in _VALUES.values()]
_FIXED = len(_COUNTS) + len(_INDEXES) + len(_VALUES)


class BadRequestError(Exception):
    """A request is not what it should be; the text says where."""


class LandlockPlan(NamedTuple):
    """A ruleset in plain numbers: what is handled, and what is allowed nevertheless."""

    fs: int
    net: int
    scoped: int
    paths: Sequence[tuple[str, int]]
    ports: Sequence[tuple[int, int]]
    own_proc: int = 0
    """Rights below the child's own folder in /proc, which exists only once the child does."""
    exact: int = 0
    """Whether the paths are where they say: one that has become a link meanwhile is as good as missing."""


_NO_PLAN = LandlockPlan(0, 0, 0, (), ())
_Text = TypeVar("_Text", str, bytes)


class Order(NamedTuple, Generic[_Text]):
    """A program to start. Texts are bytes for the server; descriptors are indexes into what comes along."""

    argv: Sequence[_Text]
    program: _Text
    env: Sequence[_Text]
    cwd: _Text
    stdio: Sequence[int]
    pass_fds: Sequence[tuple[int, int]]
    """Pairs of an index and the number that the program finds it under."""
    plan: LandlockPlan | None
    filter: bytes
    limits: Sequence[tuple[int, int]]
    wall_seconds: float | None
    cgroup: int
    umask: int
    keep_caps: int


# --- writing ----------------------------------------------------------------------------------------------------------


def packed_request(members: dict[str, Any]) -> bytes:
    """Return the body of a request that is no order."""
    return JSON + json.dumps(members).encode()


def packed_order(order: Order[str]) -> bytes:
    """Return the body of an order; a null byte in a text is refused."""
    plan = order.plan or _NO_PLAN
    texts = [order.program, order.cwd, *order.argv, *order.env]
    if plan.paths:
        texts += [path for path, _ in plan.paths]
    blob = encoded("\0".join(texts))  # all at once: an environment has many of them
    if blob.count(b"\0") != len(texts) - 1:
        raise ValueError("embedded null byte")
    pairs = (*plan.ports, *order.limits, *order.pass_fds)
    numbers = array(
        "q",
        (
            *(len(order.argv), len(order.env), len(plan.paths)),
            *(len(plan.ports), len(order.limits), len(order.pass_fds)),
            *order.stdio,
            *(order.cgroup, order.umask, order.keep_caps, _microseconds(order.wall_seconds), order.plan is not None),
            *(plan.fs, plan.net, plan.scoped, plan.own_proc, plan.exact),
            *(mask for _, mask in plan.paths),
            *(number for pair in pairs for number in pair),
        ),
    )
    return b"".join((_SIZES.pack(ORDER, len(numbers), len(order.filter)), numbers.tobytes(), order.filter, blob))


def packed_answer(members: dict[str, Any]) -> bytes:
    """Return any other answer than that a program was started; one that does not fit loses some missing paths."""
    while len(packet := json.dumps(members).encode()) > LARGEST_ANSWER:
        members = {**members, "missing": members["missing"][: len(members["missing"]) // 2]}
    return packet


def packed_start(pid: int, missing: Sequence[str]) -> bytes:
    """Return the answer that a program was started."""
    while len(blob := encoded("\0".join(missing))) > LARGEST_ANSWER - _STARTED.size:
        missing = missing[: len(missing) // 2]
    return _STARTED.pack(ORDER, pid) + blob


def parsed_answer(packet: bytes) -> dict[str, Any]:
    """Return the members of an answer."""
    if not packet.startswith(ORDER):
        members: dict[str, Any] = json.loads(packet)
        return members
    missing = packet[_STARTED.size :]
    paths = tuple(decoded(missing).split("\0")) if missing else ()
    return {"ok": True, "pid": _STARTED.unpack_from(packet)[1], "missing": paths}


def _microseconds(seconds: float | None) -> int:
    """Return a time as a number; 0 for none."""
    return 0 if seconds is None else round(seconds * _MICROSECONDS) or 1


def encoded(text: str) -> bytes:
    """Return a text as the system takes it. ``os.fsencode`` asks a function that can be replaced."""
    return text.encode(_ENCODING, "surrogateescape")


def decoded(text: bytes) -> str:
    """Return a text of the system."""
    return text.decode(_ENCODING, "surrogateescape")


def sealed(body: bytes) -> int:
    """Return a descriptor that holds the body and can never change."""
    descriptor = memfd_create("request", MFD_CLOEXEC | MFD_ALLOW_SEALING)
    try:
        view = memoryview(body)
        while view:
            view = view[write(descriptor, view) :]
        control(descriptor, _ADD_SEALS, SEALS)
    except BaseException:
        close(descriptor)
        raise
    return descriptor


def unsealed(descriptor: int) -> bytes:
    """Return what a sealed body holds. Anything else, which might block or change while it is read, is refused."""
    try:
        seals = control(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise BadRequestError("the body is no memfd") from error
    size = fstat(descriptor).st_size
    if seals & SEALS != SEALS or size > LARGEST_BODY:
        raise BadRequestError("the body is not sealed" if seals & SEALS != SEALS else "the body is too large")
    return pread(descriptor, size, 0)


# --- reading, and checking --------------------------------------------------------------------------------------------


def parsed_request(body: bytes) -> dict[str, Any]:
    """Return the members of a request that is no order."""
    try:
        request = json.loads(body[1:].decode())
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"not JSON: {error}") from error
    if type(request) is not dict or type(request.get("action")) is not str:
        raise BadRequestError("expected an object with an action")
    return request


def parsed_order(body: bytes, descriptors: int) -> Order[bytes]:
    """Return the order in a body, with everything about it checked; so many descriptors came along."""
    numbers, program, texts = _parts(body)
    argc, envc, pathc, portc, limitc, passc = counts = numbers[: len(_COUNTS)]
    if min(counts) < 0 or argc < 1:
        raise BadRequestError("argv is empty, or a count is negative")
    expected = _FIXED + pathc + 2 * (portc + limitc + passc)
    if len(numbers) != expected or len(texts) != 2 + argc + envc + pathc:
        raise BadRequestError("the counts are not those of what follows")
    if not (texts[0].startswith(b"/") and texts[1].startswith(b"/")):
        raise BadRequestError("program and folder: expected an absolute path")
    indexes, (umask, caps, wall, has_plan, *masks) = _fixed(numbers, descriptors)
    found = list(zip(numbers[_FIXED + pathc :: 2], numbers[_FIXED + pathc + 1 :: 2], strict=True))
    paths = list(zip(texts[2 + argc + envc :], numbers[_FIXED : _FIXED + pathc], strict=True))
    return Order(
        argv=texts[2 : 2 + argc],
        program=texts[0],
        env=texts[2 + argc : 2 + argc + envc],
        cwd=texts[1],
        stdio=indexes[:3],
        pass_fds=_checked_passing(found[portc + limitc :], descriptors),
        plan=_checked_plan(masks, paths, found[:portc]) if has_plan else None,
        filter=program,
        limits=_checked_limits(found[portc : portc + limitc]),
        wall_seconds=wall / _MICROSECONDS if wall else None,
        cgroup=indexes[3],
        umask=umask,
        keep_caps=caps,
    )


def plan_of(value: object) -> LandlockPlan:
    """Return a plan that was sent in JSON."""
    if type(value) is not list or len(value) != len(LandlockPlan._fields):
        raise BadRequestError(f"plan: expected a list of {len(LandlockPlan._fields)}")
    fs, net, scoped, paths, ports, own_proc, exact = value
    try:
        texts = [(encoded(path), mask) for path, mask in paths]
        numbers = [fs, net, scoped, own_proc, exact, *(mask for _, mask in paths), *(n for pair in ports for n in pair)]
        if any(type(number) is not int for number in numbers) or any(b"\0" in path for path, _ in texts):
            raise BadRequestError("plan: expected whole numbers, and paths without a null byte")
        return _checked_plan([fs, net, scoped, own_proc, exact], texts, [(port, mask) for port, mask in ports])
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"plan: {error}") from error


def signal_of(packet: bytes) -> int | None:
    """Return the number of the signal that the application sends on a lifeline."""
    return packet[0] if len(packet) == 1 and packet[0] <= _LAST_SIGNAL else None


def _parts(body: bytes) -> tuple[list[int], bytes, list[bytes]]:
    """Return the numbers of an order, its filter and its texts."""
    if len(body) < _SIZES.size:
        raise BadRequestError("the order is cut off")
    _, count, size = _SIZES.unpack_from(body)
    middle = _SIZES.size + count * _WIDTH
    if count < _FIXED or middle + size > len(body):
        raise BadRequestError("the order is cut off")
    if size % _WIDTH or size > _LARGEST_FILTER:
        raise BadRequestError("filter: not a list of at most 4096 instructions")
    numbers = array("q")
    numbers.frombytes(body[_SIZES.size : middle])
    return numbers.tolist(), body[middle : middle + size], body[middle + size :].split(b"\0")


def _fixed(numbers: list[int], descriptors: int) -> tuple[list[int], list[int]]:
    """Return the indexes and the values that every order has."""
    first = len(_COUNTS)
    indexes = numbers[first : first + len(_INDEXES)]
    if min(indexes) < NOTHING or max(indexes) >= descriptors:
        raise BadRequestError("a stream or the cgroup: there is no such descriptor")
    values = numbers[first + len(_INDEXES) : _FIXED]
    if not (all(map(operator.le, _LOWEST, values)) and all(map(operator.le, values, _HIGHEST))):
        wrong = [name for name, value in zip(_VALUES, values, strict=True) if not _is_within(value, *_VALUES[name])]
        raise BadRequestError(f"{', '.join(wrong)}: the number is out of range")
    return indexes, values


def _is_within(value: int, low: int, high: int) -> bool:
    return low <= value <= high


def _checked_plan(masks: list[int], paths: list[tuple[bytes, int]], ports: list[tuple[int, int]]) -> LandlockPlan:
    fs, net, scoped, own_proc, exact = masks
    used = (*masks, *(mask for _, mask in paths), *(mask for _, mask in ports))
    if min(used) < 0 or max(used) > _ALL_BITS:
        raise BadRequestError("plan: a mask is no number of 63 bits")
    if not all(path.startswith(b"/") for path, _ in paths):
        raise BadRequestError("plan: expected absolute paths")
    if any(not 0 <= port <= _HIGHEST_PORT for port, _ in ports):
        raise BadRequestError(f"plan: expected ports from 0 to {_HIGHEST_PORT}")
    named = [(decoded(path), mask) for path, mask in paths]
    return LandlockPlan(fs, net, scoped, named, ports, own_proc, exact)


def _checked_limits(limits: list[tuple[int, int]]) -> list[tuple[int, int]]:
    for number, most in limits:
        if not 0 <= number <= _HIGHEST_RESOURCE or most < 0:
            raise BadRequestError("limits: expected a resource and the most of it")
    return limits


def _checked_passing(passed: list[tuple[int, int]], descriptors: int) -> list[tuple[int, int]]:
    for index, target in passed:
        if not 0 <= index < descriptors or not _FIRST_TARGET <= target <= _HIGHEST_TARGET:
            raise BadRequestError("pass_fds: there is no such descriptor, or it is a standard stream")
    if len({target for _, target in passed}) != len(passed):
        raise BadRequestError("pass_fds: a number is given twice")
    return passed
