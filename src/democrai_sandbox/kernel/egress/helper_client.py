"""Client of the helper's socket: each request uses one connection and one deadline."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import struct
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel.helper.protocol import LONGEST_LINE, LONGEST_SOCKET_PATH, VERSION

from .allowlist import ChildCgroup

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .allowlist import Endpoint


def readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Wait until some descriptors are readable or closed by the other end; return them."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(max(0.0, seconds) * 1000)}


LONGEST_ANSWER = 1024 * 1024
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
_RESTART = "check the helper's log; the helper restarts automatically, or when you restart the application"


class HelperClient:
    """Client of the helper. It holds no open connection, so any thread or forked process may use it."""

    def __init__(self, path: str, *, timeout: float = _WITHIN) -> None:
        self.path = path
        self.timeout = timeout

    def ping(self, *, timeout: float | None = None) -> int:
        """Return the helper's process id; raise when the answer is malformed or has another protocol version."""
        answer = self._ask({"action": "ping"}, timeout).fields
        if answer.get("version") != VERSION:
            raise HelperFailed(
                f"the helper at {self.path} uses protocol version {answer.get('version')!r}, not {VERSION}",
                fix="run the helper and the application from the same installation",
                reason="version",
            )
        return _number(answer, "pid")

    def apply(self, pid: int | None = None, *, timeout: float | None = None) -> dict[str, Any]:
        """Apply the policy file and move a process into its cgroup; return the helper's answer."""
        return self._ask({"action": "apply"} if pid is None else {"action": "apply", "pid": pid}, timeout).fields

    def join(self, pid: int) -> dict[str, Any]:
        """Move another process into the application's cgroup."""
        return self._ask({"action": "join", "pid": pid}).fields

    def child(self, endpoints: Iterable[Endpoint]) -> ChildCgroup:
        """Return a cgroup for one child, from which packets go to these endpoints only."""
        wanted = [endpoint.as_dict() for endpoint in endpoints]
        answer = self._ask({"action": "child", "endpoints": wanted}, expected=1)
        (descriptor,) = answer.descriptors
        try:
            number, path = _number(answer.fields, "child"), answer.fields.get("cgroup")
            if type(path) is not str:
                raise _bad("'cgroup' is not a text")
            return ChildCgroup(descriptor, number, path)
        except HelperFailed:
            os.close(descriptor)
            raise

    def release(self, child: int) -> None:
        """Release a child's cgroup and kill the processes left in it."""
        self._ask({"action": "release", "child": child})

    def status(self, *, timeout: float | None = None) -> dict[str, Any]:
        """Return the helper's state and its rules."""
        return self._ask({"action": "status"}, timeout).fields

    def clear(self, *, leave: bool = True) -> bool:
        """Remove the rules and the cgroup at an orderly stop, and stop the helper; return whether it stops."""
        return self._ask({"action": "clear", "exit": leave}).fields.get("exiting") is True

    def _ask(self, request: dict[str, object], timeout: float | None = None, *, expected: int = 0) -> _HelperExchange:
        """Send a request; return its exchange, whose descriptors the receiver must close."""
        body = json.dumps({**request, "version": VERSION}, separators=(",", ":")).encode("ascii") + b"\n"
        if len(body) > LONGEST_LINE:
            raise HelperFailed(
                f"the request {request['action']!r} has {len(body)} bytes; the helper's limit is {LONGEST_LINE}",
                fix="reduce the number of network endpoints of the subject",
                reason="bad_request",
            )
        exchange = _HelperExchange(self.path, monotonic() + (self.timeout if timeout is None else timeout))
        try:
            exchange.fields = _parsed(exchange.run(body))
            if len(exchange.descriptors) != expected:
                raise _bad(  # noqa: TRY301 - the handler closes the descriptors
                    f"it has {len(exchange.descriptors)} descriptors instead of {expected}"
                )
        except BaseException:
            for descriptor in exchange.descriptors:
                os.close(descriptor)
            raise
        return exchange


class _HelperExchange:
    """Connection for one request. All steps share one deadline."""

    def __init__(self, path: str, deadline: float) -> None:
        self._path = path
        self._deadline = deadline
        self.fields: dict[str, Any] = {}
        self.descriptors: list[int] = []

    def run(self, body: bytes) -> bytes:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as link:
                self._connect(link)
                self._send(link, body)
                return self._receive(link)
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

    def _wait(self, link: socket.socket) -> None:
        left = self._deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        link.settimeout(left)

    def _connect(self, link: socket.socket) -> None:
        if len(os.fsencode(self._path)) > LONGEST_SOCKET_PATH:
            raise HelperFailed(
                f"the path of the helper's socket is longer than {LONGEST_SOCKET_PATH} bytes: {self._path}",
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
                fix="run the helper for the user of the application, and check the mode of the socket's folder",
                reason=FOREIGN_SOCKET,
            ) from error
        self._check_peer(link)

    def _reach(self, link: socket.socket) -> None:
        """Connect; retry while the helper's queue is full."""
        while True:
            self._wait(link)
            try:
                link.connect(self._path)
            except BlockingIOError:
                sleep(_LOOK)
            else:
                return

    def _check_peer(self, link: socket.socket) -> None:
        """Reject a socket of another user, which would receive the allowlist and give false answers."""
        data = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(data)
        if user not in (_ROOT, os.geteuid()):
            raise HelperFailed(
                f"the process listening at {self._path} belongs to user {user}, neither to root nor to this user",
                fix="remove that socket, and make its folder writable for its owner only",
                reason=FOREIGN_SOCKET,
            )

    def _send(self, link: socket.socket, body: bytes) -> None:
        rest = memoryview(body)
        with suppress(BrokenPipeError):  # the helper has already answered with the reason
            while rest:
                self._wait(link)
                rest = rest[link.send(rest) :]
            link.shutdown(socket.SHUT_WR)

    def _receive(self, link: socket.socket) -> bytes:
        room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * _DESCRIPTOR.size)
        received = bytearray()
        data = b"-"
        while data:  # until the end: if closed after the newline, the helper may treat its answer as lost
            self._wait(link)
            data, ancillary, flags, _ = link.recvmsg(_ONE_READ, room, socket.MSG_CMSG_CLOEXEC)
            self._keep_descriptors(ancillary)
            received += data
            if flags & socket.MSG_CTRUNC:
                raise _bad("it has too many descriptors")
            if len(received) > LONGEST_ANSWER:
                raise _bad(f"it is longer than {LONGEST_ANSWER} bytes")
        if b"\n" not in received:
            # A killed helper closes the connection before it has answered; this is not a malformed answer.
            raise ConnectionResetError(errno.ECONNRESET, "the connection closed before the answer was complete")
        return bytes(received)

    def _keep_descriptors(self, ancillary: list[tuple[int, int, bytes]]) -> None:
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                whole = len(data) - len(data) % _DESCRIPTOR.size
                self.descriptors += (number for (number,) in _DESCRIPTOR.iter_unpack(data[:whole]))


def _parsed(received: bytes) -> dict[str, Any]:
    """Return the fields of a successful answer; raise the error of a refusal."""
    line, _, rest = received.partition(b"\n")
    if rest:
        raise _bad("it has extra data after the end")
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad("it is not valid JSON") from error
    if not isinstance(answer, dict) or type(answer.get("ok")) is not bool:
        raise _bad("the field 'ok' is missing or not a boolean")
    if not answer["ok"]:
        raise refusal(answer)
    return answer


def _number(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int or value < 0:
        raise _bad(f"{name!r} is not a number")
    return value


def refusal(answer: dict[str, Any]) -> HelperFailed:
    """Return the error for a refusing answer."""
    what, fix, reason = (str(answer.get(name) or "")[:_LONGEST_SHOWN] for name in ("error", "fix", "reason"))
    return HelperFailed(what or "the helper refused without a reason", fix=fix, reason=reason or "refused")


def _bad(why: str) -> HelperFailed:
    return HelperFailed(
        f"the helper's answer is malformed: {why}",
        fix="run the helper and the application from the same installation",
        reason=BAD_ANSWER,
    )
