"""The spawn server's children, and what they leave behind. Standard library only: the server loads this file alone.

A child that has ended is kept as a zombie until the application lets go of it, so its number can be nobody else's.
Orphans of children come to the server, which is their subreaper. Whose they are is told by a mark: a limit that the
kernel keeps for every process and does nothing with, which is inherited, can only be lowered, and is a number that
nobody else knows. Sessions, groups and environments are a process's own to change.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from typing import Any

_FAREWELL_SECONDS = 10.0
_PAUSE = 0.002
_CHASE_SECONDS = 0.05
"""How long an orphan that goes on forking is run after at once; then again with the next sweep."""
MARKING = 10
"""RLIMIT_LOCKS, of which the kernel has made no use since 2.4."""
_LARGEST_MARK = (1 << 62) - 1


class Child:
    """One program that was started, the leader of its session and group."""

    __slots__ = ("deadline", "ended", "let_go", "lifeline", "mark", "pid", "pidfd", "report", "timed_out")

    def __init__(self, pid: int, pidfd: int, lifeline: int, deadline: float | None, mark: int) -> None:
        """Take over its handle and its lifeline."""
        self.pid = pid
        self.mark = mark
        self.pidfd = pidfd
        self.lifeline = lifeline
        self.deadline = deadline
        self.report = -1
        """Where it says that it runs, while it does not."""
        self.ended = False
        self.let_go = False
        """Whether the application has closed the lifeline."""
        self.timed_out = False

    def signal(self, number: int) -> None:
        """Send a signal to the group. Nobody waits for the child before it is forgotten, so the number is its own."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            # Something of the group runs as another user, which the kernel takes for a refusal of the whole call.
            with suppress(OSError):
                os.kill(self.pid, number)

    def reap(self) -> None:
        """Give the number back; only for one that has ended."""
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        os.close(self.pidfd)


class Children:
    """All of them, by their number."""

    def __init__(self, native: Any) -> None:
        """Begin with none."""
        self.known: dict[int, Child] = {}
        self.standby = 0
        """A child of the server that runs no program: it stays when orphans are ended."""
        self._timed: dict[int, Child] = {}
        """Those that run and whose time will be up."""
        self._own = OwnChildren(native)
        most = resource.getrlimit(MARKING)[1]
        self._largest_mark = _LARGEST_MARK if most == resource.RLIM_INFINITY else min(most, _LARGEST_MARK)

    @property
    def running(self) -> int:
        """How many have not ended."""
        return sum(not child.ended for child in self.known.values())

    def add(self, child: Child) -> None:
        """Take up one that was started."""
        self.known[child.pid] = child
        if child.deadline is not None:
            self._timed[child.pid] = child

    def drop(self, child: Child) -> None:
        """Know nothing of one any more."""
        self.known.pop(child.pid, None)
        self._timed.pop(child.pid, None)

    def new_mark(self) -> int:
        """Return the mark of the next child."""
        return int.from_bytes(os.urandom(8), "little") % (self._largest_mark + 1)

    def end(self, child: Child) -> bool:
        """Note that one has ended, and end what it left; tell whether some of that may still be there."""
        child.ended = True
        self._timed.pop(child.pid, None)
        # Whatever it left has come to us with its end: where there is nothing, its group is empty as well.
        left = self.sweep()
        if left:
            child.signal(signal.SIGKILL)
            last = time.monotonic() + _CHASE_SECONDS
            while (left := self.sweep()) and time.monotonic() <= last:
                time.sleep(_PAUSE / 10)
        return left

    def forget(self, child: Child) -> None:
        """Give up one that has ended and that nobody asks about any more."""
        self.drop(child)
        child.reap()

    def next_deadline(self) -> float | None:
        """Return when the next one's time is up."""
        if not self._timed:
            return None
        return min(child.deadline for child in self._timed.values() if child.deadline is not None)

    def end_late(self, now: float) -> None:
        """End those whose time is up."""
        for child in [child for child in self._timed.values() if child.deadline is not None and child.deadline <= now]:
            del self._timed[child.pid]
            child.timed_out = True
            child.signal(signal.SIGKILL)

    def sweep(self) -> bool:
        """Wait for orphans that have ended, and end those that are of no child that runs; tell whether there were any.

        What those leave comes here with their end: for that there is another sweep.
        """
        found = False
        running = None
        for pid in self._own.strangers(self.known):
            if pid == self.standby or _has_ended(pid):
                continue
            if running is None:
                running = {child.mark for child in self.known.values() if not child.ended}
            if _mark_of(pid) not in running:
                found = True
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)  # not waited for, so the number is its own
        return found

    def end_all(self) -> None:
        """End every descendant: whoever ends leaves its own children to us, until there are none."""
        last = time.monotonic() + _FAREWELL_SECONDS
        for child in self.known.values():
            child.signal(signal.SIGKILL)
        while _wait_for_any() and time.monotonic() < last:
            for pid in self._own.strangers({}):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_PAUSE)


class OwnChildren:
    """The direct children of this process, which has one thread. The list stays open: it is read at each end of one."""

    def __init__(self, native: Any) -> None:
        """Open the list, where the kernel has one."""
        self._native = native
        try:
            self._list = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._list = -1

    def strangers(self, known: dict[int, Any]) -> list[int]:
        """Return the numbers of those that are not known."""
        if self._list < 0:
            return [pid for pid in _processes() if pid not in known and _parent(pid) == os.getpid()]
        try:
            found: list[int] = self._native.strangers(self._list, known)
        except OSError:
            return []
        return found


def _mark_of(pid: int) -> int | None:
    """Return the mark of a process; None for one that is gone."""
    try:
        return resource.prlimit(pid, MARKING)[1]
    except OSError:
        return None


def _processes() -> list[int]:
    try:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - names are all it takes
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            # The name of a program may hold anything, also ") R 1": what counts comes after the last bracket.
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return -1


def _has_ended(pid: int) -> bool:
    """Wait for a child without blocking; tell whether it is gone."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def _wait_for_any() -> bool:
    """Wait for all that have ended; tell whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True
