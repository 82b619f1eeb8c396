"""Processes: process ids are reused, so each is held by a descriptor or identified by its start time.

A client or target must be the application or a descendant, of the same user, and not confined.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from .protocol import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterator

HIGHEST_PID = 2**22
_PROC = Path("/proc")
_STATE, _PARENT, _START_TIME = 0, 1, 19
"""Positions in /proc/PID/stat, counted after the name."""
_DEAD = frozenset("ZXx")


class ProcessFacts(NamedTuple):
    """Parent of a process, and its start time in clock ticks since boot."""

    parent: int
    start_time: int
    dead: bool


class Owners(NamedTuple):
    """Owners of a process: real, effective, saved and filesystem ids, and supplementary groups."""

    users: tuple[int, ...]
    groups: tuple[int, ...]
    further: tuple[int, ...]


def facts(pid: int) -> ProcessFacts:
    """Read the parent and the start time; raise ``gone`` for a process that does not exist."""
    try:
        line = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        raise gone(pid) from None
    # A process chooses its name, for example "a) R 1 1": only the text after the last parenthesis is trustworthy.
    parts = line[line.rindex(b")") + 2 :].split()
    return ProcessFacts(int(parts[_PARENT]), int(parts[_START_TIME]), parts[_STATE].decode() in _DEAD)


def owners(pid: int) -> Owners:
    """Read the owners of a process."""
    try:
        lines = (_PROC / str(pid) / "status").read_bytes().splitlines()
    except OSError:
        raise gone(pid) from None
    # The name comes first with escaped line ends, so it cannot forge a line.
    found = {
        name: tuple(map(int, rest.split()))
        for name, _, rest in (line.partition(b":") for line in lines)
        if name in {b"Uid", b"Gid", b"Groups"}
    }
    return Owners(found[b"Uid"], found[b"Gid"], found.get(b"Groups", ()))


def cgroup_of(pid: int) -> str:
    """Return the path of its cgroup below the root of the v2 hierarchy; empty without one."""
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        raise gone(pid) from None
    return next((line[len("0::") :] for line in lines if line.startswith("0::")), "")


def network_of(pid: int | None = None) -> tuple[int, int] | None:
    """Return the network namespace of a process or the calling thread; None without the right to read it."""
    try:
        found = (_PROC / ("thread-self" if pid is None else str(pid)) / "ns" / "net").stat()
    except PermissionError:  # for another process, CAP_SYS_PTRACE is missing
        return None
    except OSError:
        raise gone(pid or os.getpid()) from None
    return found.st_dev, found.st_ino


class Handle:
    """Process held by a descriptor, so that a reused process id is noticed.

    On a kernel without such descriptors, the start time distinguishes two processes with the same id.
    """

    def __init__(self, pid: int, descriptor: int | None, start_time: int) -> None:
        self.pid = pid
        self.start_time = start_time
        self.descriptor = descriptor
        """Descriptor that becomes readable when the process ends, if the kernel supports it."""

    @classmethod
    def of(cls, pid: int, *, descriptor: int | None = None, pidfds: bool = True) -> Handle:
        """Open a handle by process id, or take over an existing descriptor."""
        if descriptor is None and pidfds:
            descriptor = _opened(pid)
        handle = cls(pid, descriptor, 0)
        try:
            handle.start_time = facts(pid).start_time
            handle.check()
        except BaseException:
            handle.close()
            raise
        return handle

    def alive(self) -> bool:
        """Whether it is still the same process and has not ended."""
        if self.descriptor is not None:
            poll = select.poll()
            poll.register(self.descriptor, select.POLLIN)
            return not poll.poll(0)
        try:
            found = facts(self.pid)
        except RequestRefused:
            return False
        return found.start_time == self.start_time and not found.dead

    def check(self) -> None:
        """Raise if it has ended, because facts about its id may concern another process."""
        if not self.alive():
            raise gone(self.pid)

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def answers(pid: int) -> bool:
    """Return whether a process with this id exists, also one of which nothing can be read."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


def gone(pid: int) -> RequestRefused:
    """Return the refusal for a process that has ended."""
    return RequestRefused("gone", f"process {pid} has ended", "use a running process")


def _opened(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container that refuses it
            return None
        # EINVAL and ENOENT: the id belongs to a thread, not to a process.
        raise gone(pid) from None


_SO_PEERPIDFD = 77
_STRANGER_FOR = 0.5
_MOST_STRANGERS = 256
_CREDENTIALS = struct.Struct("3i")
_LONGEST_LINE_OF_DESCENT = 512
_WITHOUT_PEERPIDFD = frozenset({errno.ENOPROTOOPT, errno.EINVAL, errno.EOPNOTSUPP})


class ProcessFamily:
    """Application with all its descendants."""

    def __init__(self, parent: Handle, user: int) -> None:
        self.parent = parent
        self.user = user
        self._cgroup = f"/democrai_os_sandbox_{parent.pid}"
        self._strangers: dict[tuple[int, int, str], tuple[float, RequestRefused]] = {}

    def client(self, connection: socket.socket) -> Handle:
        """Identify the process that connected. Check the handle again before acting on its request."""
        pid, user, _ = _CREDENTIALS.unpack(
            connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
        if user != self.user:
            raise self._foreign(f"the request comes from user {user}")
        if pid <= 0:
            raise RequestRefused("not_a_descendant", "the request comes from a process in another pid namespace")
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
            raise RequestRefused("bad_request", "pid must be a valid process id", "send the process id as a number")
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
        except RequestRefused as error:
            if len(self._strangers) >= _MOST_STRANGERS:
                self._strangers.clear()
            self._strangers[known] = (time.monotonic() + _STRANGER_FOR, error.again())
            raise

    def _check(self, handle: Handle) -> None:
        """Check the process, and check last that it still lives: only then all checks were about this process."""
        cgroup = cgroup_of(handle.pid)
        if f"{self._cgroup}/" in cgroup:
            # A confined child that could request a cgroup would leave its own.
            raise RequestRefused(
                "confined", f"process {handle.pid} is a confined child", "send it from the application"
            )
        if cgroup != self._cgroup and not self._descends(handle):
            error = f"process {handle.pid} is neither the application ({self.parent.pid}) nor its descendant"
            raise RequestRefused("not_a_descendant", error, "send the request from the application of this helper")
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

    def _foreign(self, what: str) -> RequestRefused:
        return RequestRefused("foreign_uid", what, f"send the request as user {self.user}, the user of the application")


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
