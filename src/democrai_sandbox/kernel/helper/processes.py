"""Processes: process ids are reused, so each is held by a descriptor or identified by its start time."""

from __future__ import annotations

import errno
import os
import select
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from .answers import Refused

HIGHEST_PID = 2**22
_PROC = Path("/proc")
_STATE, _PARENT, _START_TIME = 0, 1, 19
"""Positions in /proc/PID/stat, counted after the name."""
_DEAD = frozenset("ZXx")


class Facts(NamedTuple):
    """Parent of a process, and its start time in clock ticks since boot."""

    parent: int
    start_time: int
    dead: bool


class Owners(NamedTuple):
    """Owners of a process: real, effective, saved and filesystem ids, and supplementary groups."""

    users: tuple[int, ...]
    groups: tuple[int, ...]
    further: tuple[int, ...]


def facts(pid: int) -> Facts:
    """Read the parent and the start time; raise ``gone`` for a process that does not exist."""
    try:
        line = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        raise gone(pid) from None
    # A process chooses its name, for example "a) R 1 1": only the text after the last parenthesis is trustworthy.
    parts = line[line.rindex(b")") + 2 :].split()
    return Facts(int(parts[_PARENT]), int(parts[_START_TIME]), parts[_STATE].decode() in _DEAD)


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


def network_of(pid: int) -> tuple[int, int] | None:
    """Return the network namespace of a process; None without the right to read it (CAP_SYS_PTRACE)."""
    return _network(_PROC / str(pid), pid)


def own_network() -> tuple[int, int] | None:
    """Return the network namespace of the calling thread."""
    return _network(_PROC / "thread-self", os.getpid())


def _network(folder: Path, pid: int) -> tuple[int, int] | None:
    try:
        found = (folder / "ns" / "net").stat()
    except PermissionError:
        return None
    except OSError:
        raise gone(pid) from None
    return found.st_dev, found.st_ino


class Handle:
    """Process held by a descriptor, so that a reused process id is noticed.

    On a kernel without such descriptors, the start time distinguishes two processes with the same id.
    """

    def __init__(self, pid: int, descriptor: int | None, start_time: int) -> None:
        self.pid = pid
        self.start_time = start_time
        self._descriptor = descriptor

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

    @property
    def descriptor(self) -> int | None:
        """Descriptor that becomes readable when the process ends, if the kernel supports it."""
        return self._descriptor

    def alive(self) -> bool:
        """Whether it is still the same process and has not ended."""
        if self._descriptor is not None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            return not poll.poll(0)
        try:
            found = facts(self.pid)
        except Refused:
            return False
        return found.start_time == self.start_time and not found.dead

    def check(self) -> None:
        """Raise if it has ended, because facts about its id may concern another process."""
        if not self.alive():
            raise gone(self.pid)

    def close(self) -> None:
        """Close the descriptor."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with suppress(OSError):
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def gone(pid: int) -> Refused:
    """Return the refusal for a process that has ended."""
    return Refused("gone", f"process {pid} has ended", "use a running process")


def _opened(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container that refuses it
            return None
        # EINVAL and ENOENT: the id belongs to a thread, not to a process.
        raise gone(pid) from None
