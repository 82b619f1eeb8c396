"""Protocol between the application and the spawn server. Standard library only: the server loads this file alone.

A request is one packet on the link. Its first descriptor is the lifeline of the caller, on which the answer returns. So
requests of several threads are independent, and a process that inherited the link cannot send answers to the
application. A body too large for a packet is passed as the second descriptor, a sealed memfd.

C code parses a request to start a program, except the plan: ``_native/order.c`` contains the same layout. All other
requests are JSON. Functions that the application needs are bound to names here, because a subject could replace them.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import sys
from array import array
from fcntl import fcntl as control
from os import MFD_ALLOW_SEALING, MFD_CLOEXEC, close, fstat, memfd_create, pread, write
from resource import RLIMIT_NPROC
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .client import SpawnOrder

ORDER = b"S"
JSON = b"J"
IN_FILE = b"M"
"""First byte of a body: its kind, or that it is in a descriptor."""
LARGEST_INLINE = 48 * 1024
LARGEST_BODY = 8 * 1024 * 1024
LARGEST_ANSWER = 64 * 1024
MOST_DESCRIPTORS = 250
"""The kernel's limit is 253 per packet."""
_ADD_SEALS = fcntl.F_ADD_SEALS
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
NOTHING = -1
"""Instead of a descriptor: /dev/null as a standard stream, none as a cgroup. As a umask: the application's."""

CHILD_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
"""Capabilities that a child of root keeps: CHOWN, DAC_OVERRIDE, FOWNER, FSETID. Others would open other processes."""

STATUS = struct.Struct("=i?")
"""End of a child, sent on its lifeline: the return code, negative for a signal; whether its timeout passed."""

_STARTED = struct.Struct("=ci")
"""Answer to a successful start: kind and pid; missing paths follow."""
_SIZES = struct.Struct("=cII")
"""Kind, number of the following numbers, and number of filter bytes after them."""
_WIDTH = 8
_ENCODING = sys.getfilesystemencoding()
_HIGHEST_PORT = 65535
_ALL_BITS = (1 << 63) - 1
_MICROSECONDS = 1_000_000

NUMBERS = (
    *("argv", "env", "paths", "ports", "limits", "pass_fds", "metadata"),
    *("stdin", "stdout", "stderr", "cgroup"),
    *("umask", "caps", "wall", "fork", "nice", "has_plan", "fs", "net", "scoped", "own_proc", "exact", "whole_proc"),
)
"""Fixed fields of every start request, in this order: counts, indexes of descriptors, values."""
_FRONT = struct.Struct(f"{_SIZES.format}{len(NUMBERS)}q")
_WALL, _FORK, _NICE, _HAS_PLAN, _METADATA, _PATHS, _PORTS, _LIMITS = (
    3 + NUMBERS.index(name) for name in ("wall", "fork", "nice", "has_plan", "metadata", "paths", "ports", "limits")
)
REPORT = struct.Struct("=i16si")
"""Report about a start: error number, step and process id, as written by ``_native/confined.c``."""
_FORKED = struct.Struct("=iIQ???")
"""Request to the template: numbers of files and rulesets, mark, and whether the last descriptors are a socket of the
supervisor, a pids cgroup, and the start request."""


class BadRequestError(Exception):
    """Malformed request; the text names the place."""


class LandlockPlan(NamedTuple):
    """Ruleset in plain numbers: handled rights, and exceptions."""

    fs: int
    net: int
    scoped: int
    paths: Sequence[tuple[str, int]]
    ports: Sequence[tuple[int, int]]
    own_proc: int = 0
    """Rights below the child's folder in /proc, which exists only after the start. Network tables are excluded."""
    exact: int = 0
    """Whether the paths must not contain links: a path that has become a link counts as missing."""
    whole_proc: int = 0
    """Whether the child's folder in /proc is included completely."""
    metadata: Sequence[str] = ()
    """Paths, without links, at and below which the supervisor changes mode, owner and times for the child."""


_NO_PLAN = LandlockPlan(0, 0, 0, (), ())


class Front(NamedTuple):
    """Fields of a start request that the server needs."""

    wall_seconds: float | None
    plan: LandlockPlan | None
    fork: bool
    nice: int
    processes: int | None


# --- writing ----------------------------------------------------------------------------------------------------------


def packed_order(order: SpawnOrder, index: Callable[[int], int]) -> bytes:
    """Encode a start request; reject null bytes. ``index`` returns the place of a descriptor in the packet."""
    plan = order.plan or _NO_PLAN
    environment = [f"{name}={value}" for name, value in order.environment.items()]
    texts = [order.program, order.folder, *order.argv, *environment]
    if plan.paths:
        texts += [path for path, _ in plan.paths]
    texts += plan.metadata
    blob = encoded("\0".join(texts))  # joined first, because an environment has many texts
    if blob.count(b"\0") != len(texts) - 1:
        raise ValueError("embedded null byte")
    numbers = _numbers(order, plan, index)
    head = _SIZES.pack(ORDER, len(numbers), len(order.filter)) + array("q", numbers).tobytes()
    return head + order.filter + blob


def _numbers(order: SpawnOrder, plan: LandlockPlan, index: Callable[[int], int]) -> list[int]:
    """Return all numbers of a request in one list; fast, because it runs before each start."""
    streams = [index(order.stdin), index(order.stdout), index(order.stderr)]
    passed = [(index(number), number) for number in dict.fromkeys(order.pass_fds)]
    # fmt: off
    numbers = [
        len(order.argv), len(order.environment), len(plan.paths), len(plan.ports), len(order.limits), len(passed),
        len(plan.metadata),
        *streams, index(order.cgroup),
        order.umask, order.keep_caps, _microseconds(order.wall_seconds), order.fork, order.nice, order.plan is not None,
        plan.fs, plan.net, plan.scoped, plan.own_proc, plan.exact, plan.whole_proc,
    ]
    # fmt: on
    if plan.paths:
        numbers += [mask for _, mask in plan.paths]
    for pairs in (plan.ports, order.limits, passed):
        for pair in pairs:
            numbers += pair
    return numbers


def packed_answer(members: dict[str, Any]) -> bytes:
    """Encode an answer other than a successful start; drop missing paths that do not fit."""
    while len(packet := json.dumps(members).encode()) > LARGEST_ANSWER:
        members = {**members, "missing": members["missing"][: len(members["missing"]) // 2]}
    return packet


def packed_start(pid: int, missing: Sequence[str]) -> bytes:
    """Encode the answer to a successful start."""
    while len(blob := encoded("\0".join(missing))) > LARGEST_ANSWER - _STARTED.size:
        missing = missing[: len(missing) // 2]
    return _STARTED.pack(ORDER, pid) + blob


def parsed_answer(packet: bytes) -> dict[str, Any]:
    """Decode an answer."""
    if not packet.startswith(ORDER):
        members: dict[str, Any] = json.loads(packet)
        return members
    missing = packet[_STARTED.size :]
    paths = tuple(decoded(missing).split("\0")) if missing else ()
    return {"ok": True, "pid": _STARTED.unpack_from(packet)[1], "missing": paths}


def packed_fork(
    body: bytes, files: int, rulesets: int, mark: int, *, supervised: bool, limited: bool
) -> tuple[bytes, bytes]:
    """Encode a request to the template; return it with the body that a descriptor has to carry, if it is large."""
    in_file = len(body) > LARGEST_INLINE - _FORKED.size
    head = _FORKED.pack(files, rulesets, mark, supervised, limited, in_file)
    return (head, body) if in_file else (head + body, b"")


class ForkRequest(NamedTuple):
    """Request to the template. The report is its first descriptor."""

    body: bytes
    report: int
    files: list[int]
    rulesets: list[int]
    mark: int
    supervisor: int
    pids: int


def parsed_fork(packet: bytes, descriptors: Sequence[int]) -> ForkRequest:
    """Decode a request of the server, which is trusted."""
    files, rulesets, mark, supervised, limited, in_file = _FORKED.unpack_from(packet)
    body, passed = packet[_FORKED.size :], list(descriptors)
    if in_file:
        body = unsealed(passed.pop())
    pids = passed.pop() if limited else NOTHING
    supervisor = passed.pop() if supervised else NOTHING
    report, passed = passed[0], passed[1:]
    return ForkRequest(body, report, passed[:files], passed[files : files + rulesets], mark, supervisor, pids)


def _microseconds(seconds: float | None) -> int:
    return 0 if seconds is None else round(seconds * _MICROSECONDS) or 1


def encoded(text: str) -> bytes:
    """Encode a text for the system. ``os.fsencode`` calls a function that can be replaced."""
    return text.encode(_ENCODING, "surrogateescape")


def decoded(text: bytes) -> str:
    """Decode a text of the system."""
    return text.decode(_ENCODING, "surrogateescape")


def sealed(body: bytes) -> int:
    """Return a descriptor of an immutable memfd with the body."""
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
    """Return the content of a sealed body. Reject other files, which might block or change while they are read."""
    try:
        seals = control(descriptor, fcntl.F_GET_SEALS)
    except OSError as error:
        raise BadRequestError("the body is not a memfd") from error
    size = fstat(descriptor).st_size
    if seals & SEALS != SEALS or size > LARGEST_BODY:
        raise BadRequestError("the body is not sealed" if seals & SEALS != SEALS else "the body is too large")
    return pread(descriptor, size, 0)


# --- reading, and checking --------------------------------------------------------------------------------------------


def parsed_request(body: bytes) -> dict[str, Any]:
    """Decode a request other than a start."""
    try:
        request = json.loads(body[1:].decode())
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"not valid JSON: {error}") from error
    if type(request) is not dict or type(request.get("action")) is not str:
        raise BadRequestError("expected an object with an action")
    return request


class RequestPacket:
    """Packet with its descriptors; those that are not taken are closed."""

    __slots__ = ("_flags", "files", "lifeline", "packet", "sender")

    def __init__(self, native: Any, link: int) -> None:
        """Receive a packet; raise ``EOFError`` when the application has ended."""
        self.packet, self.lifeline, self.files, self.sender, self._flags = native.receive(link)
        # Some kernels report a sender of 0 at the end of the stream.
        if not self.packet and self.lifeline < 0 and not self.files and not self.sender:
            raise EOFError

    def body(self, application: int) -> bytes:
        """Return the body, after checking that the application sent it."""
        if self.sender != application:
            raise BadRequestError(f"process {self.sender} is not the application")
        if self._flags & _CUT:
            raise BadRequestError("the packet is too large, or no descriptor is free for its files")
        packet: bytes = self.packet
        if packet != IN_FILE or not self.files:
            return packet
        file = self.files.pop(0)
        try:
            return unsealed(file)
        finally:
            close(file)

    def close(self) -> None:
        """Close the descriptors that were not taken, except the lifeline."""
        for file in self.files:
            close(file)
        self.files.clear()


def read_front(body: bytes) -> Front:
    """Return the fields of a start request that the server needs. The C code parses and checks all other fields."""
    if len(body) < _FRONT.size:
        raise BadRequestError("the start request is truncated")
    front = _FRONT.unpack_from(body)
    wall = front[_WALL]
    plan = _plan_in(body, front) if front[_HAS_PLAN] == 1 else None
    processes = _processes_in(body, front) if front[_LIMITS] else None
    return Front(wall / _MICROSECONDS if wall else None, plan, front[_FORK] == 1, front[_NICE], processes)


def _processes_in(body: bytes, front: tuple[int, ...]) -> int | None:
    first = _FRONT.size + (front[_PATHS] + 2 * front[_PORTS]) * _WIDTH
    last = first + 2 * front[_LIMITS] * _WIDTH
    if not _FRONT.size <= first <= last <= len(body):
        raise BadRequestError("the counts do not match the content")
    numbers = array("q", body[first:last])
    limits = zip(numbers[::2], numbers[1::2], strict=True)
    return min((most for number, most in limits if number == RLIMIT_NPROC), default=None)


def plan_of(value: object) -> LandlockPlan:
    """Decode a plan that was sent in JSON."""
    if type(value) is not list or len(value) != len(LandlockPlan._fields):
        raise BadRequestError(f"plan: expected a list of {len(LandlockPlan._fields)}")
    fs, net, scoped, paths, ports, *others, metadata = value
    try:
        texts = [(encoded(path), mask) for path, mask in paths]
        numbers = [fs, net, scoped, *others, *(mask for _, mask in paths), *(n for pair in ports for n in pair)]
        if any(type(number) is not int for number in numbers) or any(b"\0" in path for path, _ in texts):
            raise BadRequestError("plan: expected whole numbers, and paths without a null byte")
        roots = [encoded(path) for path in metadata]
        return _checked_plan([fs, net, scoped, *others], texts, [(port, mask) for port, mask in ports], roots)
    except (TypeError, ValueError) as error:
        raise BadRequestError(f"plan: {error}") from error


def _plan_in(body: bytes, front: tuple[int, ...]) -> LandlockPlan:
    """Return the plan of a start request: its masks end the fixed fields, its texts end the body."""
    _, count, size, argc, envc, pathc, portc = front[:7]
    rootc = front[_METADATA]
    middle = _SIZES.size + count * _WIDTH
    end = _FRONT.size + (pathc + 2 * portc) * _WIDTH
    texts = body[middle + size :].split(b"\0")
    first = 2 + argc + envc
    if (
        min(argc, envc, pathc, portc, rootc) < 0
        or not end <= middle <= len(body)
        or len(texts) != first + pathc + rootc
    ):
        raise BadRequestError("the counts do not match the content")
    numbers = array("q", body[_FRONT.size : end])
    paths = list(zip(texts[first : first + pathc], numbers[:pathc], strict=True))
    ports = list(zip(numbers[pathc::2], numbers[pathc + 1 :: 2], strict=True))
    return _checked_plan(list(front[-6:]), paths, ports, texts[first + pathc :])


def _checked_plan(
    masks: list[int], paths: list[tuple[bytes, int]], ports: list[tuple[int, int]], metadata: list[bytes]
) -> LandlockPlan:
    fs, net, scoped, own_proc, exact, whole_proc = masks
    used = (*masks, *(mask for _, mask in paths), *(mask for _, mask in ports))
    if min(used) < 0 or max(used) > _ALL_BITS:
        raise BadRequestError("plan: a mask is not a 63-bit number")
    if not all(path.startswith(b"/") for path in (*(path for path, _ in paths), *metadata)):
        raise BadRequestError("plan: expected absolute paths")
    if any(not 0 <= port <= _HIGHEST_PORT for port, _ in ports):
        raise BadRequestError(f"plan: expected ports from 0 to {_HIGHEST_PORT}")
    named = [(decoded(path), mask) for path, mask in paths]
    roots = tuple(map(decoded, metadata))
    return LandlockPlan(fs, net, scoped, named, ports, own_proc, exact, whole_proc, roots)
