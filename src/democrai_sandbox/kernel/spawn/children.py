"""Children of the spawn server and their orphans. Standard library only, because the server loads single files.

An ended child stays a zombie until the application releases it, so its process id is not reused. The server is the
subreaper and adopts the orphans of children. A mark shows to which child an orphan belongs: a secret number in a
resource limit that the kernel stores for every process but does not use. It is inherited and can only be lowered, while
a process can change its session, group and environment.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .pids_cgroups import PidsCgroups

_FAREWELL_SECONDS = 10.0
_PAUSE = 0.002
_CHASE_SECONDS = 0.05
"""Seconds to chase an orphan that keeps forking; the next sweep continues."""
_REAP_SECONDS = 1.0
"""Seconds to reap processes that were stopped and killed."""
_FREEZE_SECONDS = 2.0
"""Seconds to stop all processes that keep forking, before they are killed; the next sweep continues."""
_ENDED, _STOPPED = b"ZXx", b"Tt"
MARKING = 10
"""RLIMIT_LOCKS, which the kernel has ignored since 2.4."""
_LARGEST_MARK = (1 << 62) - 1
_SECRET_BITS = 31
_SHARES_PAUSE = 0.12
"""Seconds between two changes of shares: without privileges, the kernel allows ten per second."""
_MOST_REFUSALS = 20


class StartedProgram:
    """Started program, the leader of its session and group."""

    def __init__(self, pid: int, pidfd: int, lifeline: int, wall_seconds: float | None, mark: int) -> None:
        self.pid = pid
        self.mark = mark
        self.pidfd = pidfd
        self.lifeline = lifeline
        """-1 after the application has closed it."""
        self.deadline = None if wall_seconds is None else time.monotonic() + wall_seconds
        """None without a timeout, and after it or the end."""
        self.nice = 0
        """Nice value of its session: its share of the processor."""
        self.refusals = 0
        """Number of refused attempts to set it."""
        self.report = -1
        """Descriptor that reports the start of the program, until it runs."""
        self.group = ""
        """Its pids cgroup; empty for none."""
        self.ended = False
        self.timed_out = False

    def signal(self, number: int) -> None:
        """Send a signal to the group. The child is not reaped before it is forgotten, so its id is not reused."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            # A member of the group runs as another user, and the kernel refuses the whole call.
            with suppress(OSError):
                os.kill(self.pid, number)


class StartedPrograms:
    """All children by process id."""

    def __init__(self, native: Any, family: int, groups: PidsCgroups) -> None:
        """Take the upper bits of the marks of all servers of this application."""
        self._family = family
        self._groups = groups
        self.known: dict[int, StartedProgram] = {}
        self.standby = 0
        """Child of the server that runs no program and survives the removal of orphans."""
        self.template: Any = None
        """The template process, and the workers that it has not reported; both survive the removal of orphans."""
        self._unshared: dict[int, StartedProgram] = {}
        """Running children whose share could not be set yet."""
        self._share_at = 0.0
        self._native = native
        try:  # kept open, because each end of a child reads it
            self._list = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._list = -1
        self._unmarked = most = resource.getrlimit(MARKING)[1]
        self._largest_mark = _LARGEST_MARK if most == resource.RLIM_INFINITY else min(most, _LARGEST_MARK)
        self.template_mark = min(family << _SECRET_BITS | (1 << _SECRET_BITS) - 1, self._largest_mark)
        """Mark of the template process and of its waiting fork: the largest one, because a mark can only be lowered."""

    @property
    def running(self) -> int:
        """Number of running children."""
        return sum(not child.ended for child in self.known.values())

    def drop(self, child: StartedProgram) -> None:
        """Remove a child from the registry."""
        self.known.pop(child.pid, None)
        self._unshared.pop(child.pid, None)

    def new_mark(self) -> int:
        """Return the mark of the next child: a secret number, after the family if there is room."""
        used = {child.mark for child in self.known.values()} | self._template_marks() | {self.template_mark}
        while True:
            secret = int.from_bytes(os.urandom(8), "little")
            mark = self._family << _SECRET_BITS | secret % (1 << _SECRET_BITS)
            if mark > self._largest_mark:
                mark = secret % (self._largest_mark + 1)
            if mark not in used:
                return mark

    def end(self, child: StartedProgram) -> bool:
        """Record that a child has ended, and kill its orphans; return whether some may remain."""
        child.ended = True
        child.deadline = None
        self._unshared.pop(child.pid, None)
        # Its orphans are now children of this process. Without any, its group is empty as well.
        left = self.sweep()
        if left:
            child.signal(signal.SIGKILL)
            left = self._chase(_CHASE_SECONDS)
        if left:
            self.end_strays()
            left = self._chase(_REAP_SECONDS)
        self._groups.remove(child.group)
        return left

    def _chase(self, seconds: float) -> bool:
        """Sweep until no orphan is left or the time is over; return whether some may remain."""
        last = time.monotonic() + seconds
        while (left := self.sweep()) and time.monotonic() <= last:
            time.sleep(_PAUSE / 10)
        return left

    def forget(self, child: StartedProgram) -> None:
        """Reap and remove an ended child that the application has released, which frees its process id."""
        self.drop(child)
        with suppress(ChildProcessError):
            os.waitpid(child.pid, os.WNOHANG)
        os.close(child.pidfd)

    def next_deadline(self) -> float | None:
        """Return the next deadline."""
        moments = [child.deadline for child in self.known.values() if child.deadline is not None]
        if self._unshared:
            moments.append(self._share_at)
        return min(moments, default=None)

    def end_late(self, now: float) -> None:
        """Kill the children whose deadline has passed."""
        for child in self.known.values():
            if child.deadline is not None and child.deadline <= now:
                child.deadline, child.timed_out = None, True
                child.signal(signal.SIGKILL)
        if self._unshared and self._share_at <= now:
            self.share(next(iter(self._unshared.values())))

    def share(self, child: StartedProgram) -> None:
        """Set the share of a child and its session, now or as soon as the kernel allows the next change.

        The kernel divides the processor between sessions first. Where it does not, the value of the process counts.
        """
        self._unshared.pop(child.pid, None)
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, child.pid, child.nice)
        try:
            file = os.open(f"/proc/{child.pid}/autogroup", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(file, b"%d" % child.nice)
            finally:
                os.close(file)
        except OSError as error:
            # Refused also at the very start of a program, before the kernel knows that its user may inspect it.
            child.refusals += error.errno == errno.EACCES
            if error.errno == errno.EAGAIN or (error.errno == errno.EACCES and child.refusals < _MOST_REFUSALS):
                self._unshared[child.pid] = child
                self._share_at = time.monotonic() + _SHARES_PAUSE

    def sweep(self) -> bool:
        """Reap ended orphans, and kill those without a running child; return whether any were found.

        Their orphans arrive here when they end, so another sweep is needed.
        """
        found = False
        running = None
        spared = (self.standby, 0 if self.template is None else self.template.pid)
        for pid in self._strangers(self.known):
            if pid in spared or _has_ended(pid):
                continue
            if running is None:
                running = self._running_marks()
            if _mark_of(pid) not in running:
                found = True
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)  # an unreaped child, so the id is its own
        return found

    def end_strays(self) -> None:
        """Stop, and then kill, all marked descendants without a running child.

        Processes that fork faster than they are killed cannot do so while they are stopped.
        """
        running = self._running_marks()
        _freeze_and_kill(_descendants, lambda mark: mark != self._unmarked and mark not in running)

    def end_predecessors(self) -> None:
        """Kill all that children of an earlier server of this application have left; call it before the first child."""

        def is_ours(mark: int | None) -> bool:
            return mark is not None and mark >> _SECRET_BITS == self._family

        _freeze_and_kill(lambda: _states(pid for pid in _processes() if is_ours(_mark_of(pid))), is_ours)

    def _running_marks(self) -> set[int]:
        return {child.mark for child in self.known.values() if not child.ended} | self._template_marks()

    def _template_marks(self) -> set[int]:
        """Return the marks of workers that the template has not reported, and its own while it runs."""
        if self.template is None:
            return set()
        own = {self.template_mark} if self.template.pid else set()
        return own | {fork.mark for fork in self.template.pending.values()}

    def end_all(self) -> None:
        """Kill every descendant: an ended process leaves its children to this one, until none is left."""
        last = time.monotonic() + _FAREWELL_SECONDS
        for child in self.known.values():
            child.ended = True
            child.signal(signal.SIGKILL)
        while _wait_for_any() and time.monotonic() < last:
            for pid in self._strangers({}):
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_PAUSE)
            if _wait_for_any():
                self.end_strays()
        self._groups.end()

    def _strangers(self, known: dict[int, Any]) -> list[int]:
        """Return the direct children of this single-threaded process that are not known."""
        if self._list < 0:
            everything = _states(_processes())
            return [pid for pid, (_, parent) in everything.items() if pid not in known and parent == os.getpid()]
        try:
            found: list[int] = self._native.strangers(self._list, known)
        except OSError:
            return []
        return found


def _mark_of(pid: int) -> int | None:
    try:
        return resource.prlimit(pid, MARKING)[1]
    except OSError:
        return None


def _freeze_and_kill(processes: Callable[[], dict[int, tuple[bytes, int]]], is_stray: Callable[[int], bool]) -> None:
    """Stop these processes until none is found that runs, then kill them."""
    last = time.monotonic() + _FREEZE_SECONDS
    while _signal_all(processes(), signal.SIGSTOP, is_stray) and time.monotonic() < last:
        pass
    _signal_all(processes(), signal.SIGKILL, is_stray)


def _signal_all(processes: dict[int, tuple[bytes, int]], number: int, is_stray: Callable[[int], bool]) -> bool:
    found = False
    for pid, (state, _) in processes.items():
        if state not in _ENDED and (number != signal.SIGSTOP or state not in _STOPPED):
            found |= _signal_stray(pid, number, is_stray)
    return found


def _signal_stray(pid: int, number: int, is_stray: Callable[[int], bool]) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        # After the handle was opened: if the process id has been reused since, either the mark or the handle fails.
        mark = _mark_of(pid)
        if mark is None or not is_stray(mark):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _states(pids: Iterable[int]) -> dict[int, tuple[bytes, int]]:
    """Return the state and the parent of processes, unless they are gone."""
    return {pid: stat for pid in pids if (stat := _stat(pid)) is not None}


def _descendants() -> dict[int, tuple[bytes, int]]:
    """Return the state and the parent of all processes below this one."""
    everything, below = _states(_processes()), defaultdict(list)
    for pid, (_, parent) in everything.items():
        below[parent].append(pid)
    found: dict[int, tuple[bytes, int]] = {}
    new = below[os.getpid()]
    while new:
        found |= {pid: everything[pid] for pid in new}
        new = [child for pid in new for child in below[pid]]
    return found


def _processes() -> list[int]:
    try:
        return [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]  # noqa: PTH208 - names are all it takes
    except OSError:
        return []


def _stat(pid: int) -> tuple[bytes, int] | None:
    """Return the state of a process and its parent; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - as above
            # A program name may contain any text, such as ") R 1": use only the text after the last bracket.
            state, parent = file.read().rpartition(b")")[2].split()[:2]
    except (OSError, ValueError):
        return None
    return state, int(parent)


def _has_ended(pid: int) -> bool:
    """Reap a child without blocking; return whether it has ended."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return True


def _wait_for_any() -> bool:
    """Reap all ended children; return whether any child is left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True
