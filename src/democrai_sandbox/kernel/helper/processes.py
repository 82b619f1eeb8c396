"""Processes as the kernel tells of them: a number is nobody's name, so a handle or a start time goes with it."""

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
"""Places in the line of /proc/PID/stat, counted after the name."""
_DEAD = frozenset("ZXx")


class Facts(NamedTuple):
    """What a process is: its parent, and the moment it was started in clock ticks since the machine was."""

    parent: int
    start_time: int
    dead: bool


class Owners(NamedTuple):
    """Whose a process is: real, effective, saved and filesystem ids, and its further groups."""

    users: tuple[int, ...]
    groups: tuple[int, ...]
    further: tuple[int, ...]


def facts(pid: int) -> Facts:
    """Read who its parent is and when it was started; a dead or unknown process is refused as ``gone``."""
    try:
        line = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        raise gone(pid) from None
    # A process chooses its own name, also "a) R 1 1": only what follows the last parenthesis is the kernel's word.
    parts = line[line.rindex(b")") + 2 :].split()
    return Facts(int(parts[_PARENT]), int(parts[_START_TIME]), parts[_STATE].decode() in _DEAD)


def owners(pid: int) -> Owners:
    """Read whose a process is."""
    try:
        lines = (_PROC / str(pid) / "status").read_bytes().splitlines()
    except OSError:
        raise gone(pid) from None
    # The name comes first and has its line ends escaped: no line of these can be forged by it.
    found = {
        name: tuple(map(int, rest.split()))
        for name, _, rest in (line.partition(b":") for line in lines)
        if name in {b"Uid", b"Gid", b"Groups"}
    }
    return Owners(found[b"Uid"], found[b"Gid"], found.get(b"Groups", ()))


def cgroup_of(pid: int) -> str:
    """Return the path of its cgroup below the root of the v2 hierarchy, or nothing when there is none."""
    try:
        lines = (_PROC / str(pid) / "cgroup").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        raise gone(pid) from None
    return next((line[len("0::") :] for line in lines if line.startswith("0::")), "")


def network_of(pid: int) -> tuple[int, int] | None:
    """Return which network a process is in; nothing when this process may not look (CAP_SYS_PTRACE)."""
    return _network(_PROC / str(pid), pid)


def own_network() -> tuple[int, int] | None:
    """Return which network the calling thread is in."""
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
    """A process held by a descriptor, so that its number cannot come to mean another one unnoticed.

    On a kernel without such descriptors the start time has to do: two processes of one number differ in it.
    """

    def __init__(self, pid: int, descriptor: int | None, start_time: int) -> None:
        self.pid = pid
        self.start_time = start_time
        self._descriptor = descriptor

    @classmethod
    def of(cls, pid: int, *, descriptor: int | None = None, pidfds: bool = True) -> Handle:
        """Take hold of a process by its number, or by a descriptor of it that is there already."""
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
        """What becomes readable when the process ends, where the kernel has that."""
        return self._descriptor

    def alive(self) -> bool:
        """Whether it is still the same process, and has not ended."""
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
        """Refuse when it has ended: whatever was found out about its number may be about another."""
        if not self.alive():
            raise gone(self.pid)

    def close(self) -> None:
        """Let go of it."""
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
    return Refused("gone", f"process {pid} has ended", "ask from, and for, a process that is running")


def _opened(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EPERM):  # old kernels have none, and some containers refuse it
            return None
        # EINVAL and ENOENT: the number is a thread's, which is no process to be moved or asked by.
        raise gone(pid) from None
