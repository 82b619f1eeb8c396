"""Verify clients and targets: the application or a descendant, of the same user, and not confined."""

from __future__ import annotations

import errno
import socket
import struct
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .answers import Refused
from .processes import HIGHEST_PID, Handle, cgroup_of, facts, gone, owners

if TYPE_CHECKING:
    from collections.abc import Iterator

_SO_PEERPIDFD = 77
_STRANGER_FOR = 0.5
_MOST_STRANGERS = 256
_CREDENTIALS = struct.Struct("3i")
_LONGEST_LINE_OF_DESCENT = 512
_WITHOUT_PEERPIDFD = frozenset({errno.ENOPROTOOPT, errno.EINVAL, errno.EOPNOTSUPP})


class Family:
    """Application with all its descendants."""

    def __init__(self, parent: Handle, user: int) -> None:
        self.parent = parent
        self.user = user
        self._cgroup = f"/democrai_os_sandbox_{parent.pid}"
        self._strangers: dict[tuple[int, int, str], tuple[float, Refused]] = {}

    def client(self, connection: socket.socket) -> Handle:
        """Identify the process that connected. Check the handle again before acting on its request."""
        pid, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != self.user:
            raise self._foreign(f"the request comes from user {user}")
        if pid <= 0:
            raise Refused("not_a_descendant", "the request comes from a process in another pid namespace")
        handle = Handle.of(pid, descriptor=_peer_descriptor(connection, pid))
        try:
            self._check_again(handle)
        except BaseException:
            handle.close()
            raise
        return handle

    @contextmanager
    def target(self, pid: object) -> Iterator[Handle]:
        """Hold a handle of the target process, after the same checks."""
        if type(pid) is not int or not 0 < pid <= HIGHEST_PID:
            raise Refused("bad_request", "pid must be a valid process id", "send the process id as a number")
        with Handle.of(pid) as handle:
            if set(owners(pid).users) != {self.user}:
                raise self._foreign(f"process {pid} does not run only as user {self.user}")
            self._check(handle)
            yield handle
            handle.check()

    def is_parent(self, handle: Handle) -> bool:
        """Whether it is the application itself."""
        return handle.pid == self.parent.pid and handle.start_time == self.parent.start_time

    def _check_again(self, handle: Handle) -> None:
        """Repeat a recent refusal without new checks, so that a flood is cheap for the helper."""
        known = (handle.pid, handle.start_time, cgroup_of(handle.pid))
        until, refused = self._strangers.get(known, (0.0, None))
        if refused is not None and time.monotonic() < until:
            raise refused.again()
        try:
            self._check(handle)
        except Refused as error:
            if len(self._strangers) >= _MOST_STRANGERS:
                self._strangers.clear()
            self._strangers[known] = (time.monotonic() + _STRANGER_FOR, error.again())
            raise

    def _check(self, handle: Handle) -> None:
        """Check the process, and check last that it still lives: only then all checks were about this process."""
        cgroup = cgroup_of(handle.pid)
        if f"{self._cgroup}/" in cgroup:
            # A confined child that could request a cgroup would leave its own.
            raise Refused("confined", f"process {handle.pid} is a confined child", "send it from the application")
        if cgroup != self._cgroup and not self._descends(handle):
            error = f"process {handle.pid} is neither the application ({self.parent.pid}) nor its descendant"
            raise Refused("not_a_descendant", error, "send the request from the application of this helper")
        handle.check()

    def _descends(self, handle: Handle) -> bool:
        """Walk the parents twice: the id of a parent that ends meanwhile may be reused within the application."""
        line = self._line_of_descent(handle.pid)
        return bool(line) and line == self._line_of_descent(handle.pid) and self.parent.alive()

    def _line_of_descent(self, pid: int) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for _ in range(_LONGEST_LINE_OF_DESCENT):
            if pid <= 0:
                return ()
            known = facts(pid)
            found.append((pid, known.start_time))
            if found[-1] == (self.parent.pid, self.parent.start_time):
                return tuple(found)
            pid = known.parent
        return ()

    def _foreign(self, what: str) -> Refused:
        return Refused("foreign_uid", what, f"send the request as user {self.user}, the user of the application")


def _peer_descriptor(connection: socket.socket, pid: int) -> int | None:
    """Return a process descriptor of the client; None if this kernel does not provide it.

    Without it, the id may have been reused by another process, which must still pass the ancestry and user checks.
    """
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno in _WITHOUT_PEERPIDFD:
            return None
        raise gone(pid) from None
