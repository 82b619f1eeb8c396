"""The application's end of the helper's socket: one question, one answer, one connection, one deadline."""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import HelperFailed

from .interface import ChildCgroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .interface import Endpoint

VERSION = 1
LONGEST_REQUEST = 64 * 1024
LONGEST_ANSWER = 1024 * 1024
_LONGEST_PATH = 107
_ONE_READ = 64 * 1024
_MOST_DESCRIPTORS = 4
_CREDENTIALS = struct.Struct("iII")
_DESCRIPTOR = struct.Struct("i")
_ROOT = 0
_WITHIN = 5.0
_LOOK = 0.01
_LONGEST_SHOWN = 400

NOT_RUNNING = "not_running"
TIMED_OUT = "timed_out"
BAD_ANSWER = "bad_answer"
FOREIGN_SOCKET = "foreign_socket"
_RESTART = "look at the helper's log; it is started again by itself, and anew when the application starts"


class Answer(NamedTuple):
    """What the helper said, and the descriptors that came with it: they are the receiver's to close."""

    fields: dict[str, Any]
    descriptors: tuple[int, ...] = ()


class HelperClient:
    """Asks the helper. Holds nothing open, so any thread may use it, and a forked process too."""

    def __init__(self, path: str, *, timeout: float = _WITHIN) -> None:
        """Keep the path of the socket; nothing is asked yet."""
        self.path = path
        self.timeout = timeout

    def ping(self, *, timeout: float | None = None) -> int:
        """Return the pid of the helper; raises when what answers is none, or one of another version."""
        answer = self._ask({"action": "ping"}, timeout).fields
        if answer.get("version") != VERSION:
            raise HelperFailed(
                f"the helper at {self.path} speaks version {answer.get('version')!r}, not {VERSION}",
                fix="let the helper and the application be of the same installation",
                reason="version",
            )
        return self._number(answer, "pid")

    def apply(self, pid: int | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """Have the policy file applied, and a process brought under it; return what the helper says about it."""
        return self._ask({"action": "apply"} if pid is None else {"action": "apply", "pid": pid}, timeout).fields

    def join(self, pid: int) -> dict[str, Any]:
        """Have a further process brought under the application's rules."""
        return self._ask({"action": "join", "pid": pid}).fields

    def child(self, endpoints: Iterable[Endpoint]) -> ChildCgroup:
        """Return a cgroup for one child, out of which packets go to these endpoints only."""
        wanted = [endpoint.as_dict() for endpoint in endpoints]
        answer = self._ask({"action": "child", "endpoints": wanted}, expected=1)
        (descriptor,) = answer.descriptors
        try:
            return ChildCgroup(descriptor, self._number(answer.fields, "child"), self._text(answer.fields, "cgroup"))
        except HelperFailed:
            os.close(descriptor)
            raise

    def release(self, child: int) -> None:
        """Give a child's cgroup back; what is left in it is killed."""
        self._ask({"action": "release", "child": child})

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return what the helper knows about itself and the rules."""
        return self._ask({"action": "status"}, timeout).fields

    def clear(self, *, leave: bool = True) -> bool:
        """Have rules and cgroup removed at an orderly stop, and the helper leave; return whether it does."""
        return self._ask({"action": "clear", "exit": leave}).fields.get("exiting") is True

    def _ask(self, request: dict[str, object], timeout: float | None = None, *, expected: int = 0) -> Answer:
        body = json.dumps({**request, "version": VERSION}, separators=(",", ":")).encode("ascii") + b"\n"
        if len(body) > LONGEST_REQUEST:
            raise HelperFailed(
                f"the question {request['action']!r} has {len(body)} bytes, and the helper takes {LONGEST_REQUEST}",
                fix="give the subject fewer network endpoints",
                reason="bad_request",
            )
        exchange = _Exchange(self.path, monotonic() + (self.timeout if timeout is None else timeout))
        try:
            exchange.run(body)
            fields = _parsed(exchange.received)
            exchange.expect_descriptors(expected)
        except BaseException:
            exchange.drop_descriptors()
            raise
        return Answer(fields, tuple(exchange.descriptors))

    @staticmethod
    def _number(fields: dict[str, Any], name: str) -> int:
        value = fields.get(name)
        if type(value) is not int or value < 0:
            raise _bad(f"{name!r} is not a number")
        return value

    @staticmethod
    def _text(fields: dict[str, Any], name: str) -> str:
        value = fields.get(name)
        if type(value) is not str:
            raise _bad(f"{name!r} is not a text")
        return value


class _Exchange:
    """One connection. Every step waits for what is left of the one deadline."""

    def __init__(self, path: str, deadline: float) -> None:
        self._path = path
        self._deadline = deadline
        self.received = b""
        self.descriptors: list[int] = []

    def run(self, body: bytes) -> None:
        """Send the question and receive the whole answer."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
                self._connect(link)
                self._send(link, body)
                self._receive(link)
        except TimeoutError as error:
            raise HelperFailed(
                f"the helper at {self._path} did not answer in time", fix=_RESTART, reason=TIMED_OUT
            ) from error
        except OSError as error:
            raise HelperFailed(
                f"the connection to the helper at {self._path} failed: {error.strerror or error}",
                fix=_RESTART,
                reason=NOT_RUNNING,
            ) from error

    def expect_descriptors(self, number: int) -> None:
        """Refuse an answer that came with others than it should."""
        if len(self.descriptors) != number:
            raise _bad(f"{len(self.descriptors)} descriptors came with it instead of {number}")

    def drop_descriptors(self) -> None:
        """Close what came and is not wanted."""
        while self.descriptors:
            os.close(self.descriptors.pop())

    def _wait(self, link: socket.socket) -> None:
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        link.settimeout(left)

    def _connect(self, link: socket.socket) -> None:
        if len(os.fsencode(self._path)) > _LONGEST_PATH:
            raise HelperFailed(
                f"the path of the helper's socket has more than {_LONGEST_PATH} bytes: {self._path}",
                fix="set sandbox.os.helper_socket to a shorter path",
                reason="socket_path_too_long",
            )
        try:
            self._reach(link)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise HelperFailed(f"no helper is listening at {self._path}", fix=_RESTART, reason=NOT_RUNNING) from error
        except PermissionError as error:
            raise HelperFailed(
                f"this user may not connect to {self._path}",
                fix="let the helper run for the user of the application, and look at the folder's mode",
                reason=FOREIGN_SOCKET,
            ) from error
        self._check_peer(link)

    def _reach(self, link: socket.socket) -> None:
        """Connect; where as many wait for the helper as may, try again until there is room."""
        while True:
            self._wait(link)
            try:
                link.connect(self._path)
            except BlockingIOError:
                sleep(_LOOK)
            else:
                return

    def _check_peer(self, link: socket.socket) -> None:
        """Refuse a socket that another user has put there: it would be told the allowlist, and obeyed."""
        data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(data)
        if user not in (_ROOT, os.geteuid()):
            raise HelperFailed(
                f"what listens at {self._path} belongs to user {user}, neither to root nor to this user",
                fix="remove that socket, and keep its folder from being writable by others",
                reason=FOREIGN_SOCKET,
            )

    def _send(self, link: socket.socket, body: bytes) -> None:
        rest = memoryview(body)
        with suppress(BrokenPipeError):  # it has answered already, and the answer says why
            while rest:
                self._wait(link)
                rest = rest[link.send(rest) :]
            link.shutdown(socket.SHUT_WR)

    def _receive(self, link: socket.socket) -> None:
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR.size)
        received = bytearray()
        data = b"-"
        while data:  # to the end: closed on a newline, the helper might take its answer for lost
            self._wait(link)
            data, ancillary, flags, _ = link.recvmsg(_ONE_READ, room, socket.MSG_CMSG_CLOEXEC)
            self._keep_descriptors(ancillary)
            received += data
            if flags & socket.MSG_CTRUNC:
                raise _bad("it came with too many descriptors")
            if len(received) > LONGEST_ANSWER:
                raise _bad(f"it is longer than {LONGEST_ANSWER} bytes")
        if b"\n" not in received:
            # A killed helper lets go in the middle; one that is at odds with this client says so, or goes on.
            raise ConnectionResetError(errno.ECONNRESET, "it hung up before it had answered")
        self.received = bytes(received)

    def _keep_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(data) - len(data) % _DESCRIPTOR.size
                self.descriptors += (number for (number,) in _DESCRIPTOR.iter_unpack(data[:whole]))


def _parsed(received: bytes) -> dict[str, Any]:
    """Return the fields of an answer that says yes; raise what one says that says no."""
    line, _, rest = received.partition(b"\n")
    if rest:
        raise _bad("something follows it")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad("it is not JSON") from error
    if not isinstance(answer, dict) or type(answer.get("ok")) is not bool:
        raise _bad("it says neither yes nor no")
    if not answer["ok"]:
        raise refusal(answer)
    return answer


def refusal(answer: dict[str, Any]) -> HelperFailed:
    """Return the error that a refusing answer stands for."""
    what, fix, reason = (str(answer.get(name) or "")[:_LONGEST_SHOWN] for name in ("error", "fix", "reason"))
    return HelperFailed(what or "the helper refused without saying why", fix=fix, reason=reason or "refused")


def _bad(why: str) -> HelperFailed:
    return HelperFailed(
        f"the helper's answer cannot be used: {why}",
        fix="let the helper and the application be of the same installation",
        reason=BAD_ANSWER,
    )
