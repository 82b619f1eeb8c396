"""One child from its start to its end, on a separate thread: input, limited output, timeout, and leftover processes.

Nothing here depends on the waiting loop, which guarded code may block. The functions for descriptors are saved at
import, because a subject could replace them and misuse descriptors.
"""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from os import O_CLOEXEC, O_NONBLOCK, close, pipe2, read, set_blocking, write
from pathlib import Path
from select import POLLIN, POLLOUT, poll
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .launch_request import ChildLauncher, ChildProgram, LaunchRequest

    Wanted = Callable[[], bool]

MARK = "DEMOCRAI_CHILD"
_ROUNDS = 5


def end_leftovers(mark: str) -> int:
    """Kill all processes that carry the mark; return their number.

    A process that cleared its environment is not found; finding it needs a cgroup, which the confining launcher has.
    """
    wanted = f"{MARK}={mark}".encode()
    ended = 0
    for _ in range(_ROUNDS):  # they may start more processes meanwhile
        numbers = map(int, filter(str.isdecimal, os.listdir("/proc")))  # noqa: PTH208 - only the names are needed
        found = [number for number in numbers if wanted in _environment(number)]
        if not found:
            break
        ended += sum(_end(number, wanted) for number in found)
    return ended


def _environment(number: int) -> list[bytes]:
    try:
        return Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # ended, or owned by another user


def _end(number: int, wanted: bytes) -> bool:
    """Kill a process through a pidfd, after checking again that the pid was not reused."""
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return False
    except OSError:  # some containers refuse it with EPERM, and old kernels lack it
        handle = -1
    try:
        if wanted not in _environment(number):
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        else:  # pids are assigned in turn, so one is not reused within a moment
            os.kill(number, signal.SIGKILL)
    except OSError:
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


_CHUNK = 65536
_LOOK = 0.25
"""Seconds between checks whether a caller still waits for the child, and whether its approvals are in force."""
_REVOKED = "it was stopped, because an approval that it had was revoked"
_DRAIN = 1.0
"""Seconds to read the rest of the pipes after the end of a child."""


class ChildLimits(NamedTuple):
    """Time and output limits of a child."""

    timeout: float
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    stdout: int
    stderr: int
    stream: bool
    """Whether output is streamed instead of stored; the child then waits for its reader."""


class FinishedChild(NamedTuple):
    """Result of a child. ``failure`` is the reason if it could not be started, or not finish."""

    returncode: int = -1
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    timed_out: bool = False
    unenforced: tuple[str, ...] = ()
    """Rules of the caller that the kernel did not enforce, if a launcher should have."""
    failure: str = ""


class ChildOutput:
    """Output of one pipe: stored up to a limit; the rest is read and dropped, so that the child continues."""

    def __init__(self, limit: int) -> None:
        self._kept = bytearray()
        self._limit = limit
        self.truncated = False

    def add(self, chunk: bytes) -> None:
        """Add a chunk of output."""
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room

    def is_full(self) -> bool:
        """Return False, because it can always be read."""
        return False

    @property
    def kept(self) -> bytes:
        """Stored bytes."""
        return bytes(self._kept)


@dataclass(eq=False, repr=False)
class Supervision:
    """Runs a child, with everything it starts, on the thread that calls ``run``. All else is thread-safe."""

    _order: LaunchRequest
    _limits: ChildLimits
    _launcher: ChildLauncher
    _: KW_ONLY
    given: bytes
    """Standard input of the child."""
    stream: ChildOutput | None
    wanted: Wanted
    """Returns whether a caller still waits."""
    _stopped = False

    def __post_init__(self) -> None:
        self._outputs = (self.stream or ChildOutput(self._limits.stdout), ChildOutput(self._limits.stderr))
        self._waking = threading.Lock()
        self._woken, self._wake = pipe2(O_CLOEXEC | O_NONBLOCK)

    def stop(self) -> None:
        """Stop the child, with everything it started."""
        self._stopped = True
        self.nudge()

    def nudge(self) -> None:
        """Wake the thread after a read or a stop."""
        with self._waking, suppress(BlockingIOError):
            if self._wake >= 0:
                write(self._wake, b"x")

    def run(self) -> FinishedChild:
        """Start the child, and return when nothing of it is left."""
        try:
            child = self._launcher(self._order)
        except (OSError, ValueError, KernelLayerError) as error:
            self._close_wake()
            return FinishedChild(failure=str(getattr(error, "strerror", None) or error))
        pump = _Pump(child, memoryview(self.given), self._outputs, self._woken)
        returncode = None
        try:
            timed_out = self._watch(pump, child)
            revoked = not pump.ended and child.is_revoked()
            self._end(pump, child)
            returncode = child.collect()
        finally:
            if returncode is None:  # after any error here, the child must not survive
                child.signal_group(signal.SIGKILL)
                child.collect()
            pump.close()
            self._close_wake()
        out, err = self._outputs
        truncated, too_late = out.truncated or err.truncated, timed_out or child.timed_out
        failure = _REVOKED if revoked else child.failure
        return FinishedChild(returncode, out.kept, err.kept, truncated, too_late, child.unenforced, failure)

    def _watch(self, pump: _Pump, child: ChildProgram) -> bool:
        """Wait for the end of the program or of its rights; return whether its timeout expired first."""
        deadline = monotonic() + self._limits.timeout
        while not pump.ended and not self._stopped and self.wanted() and not child.is_revoked():
            left = deadline - monotonic()
            if left <= 0:
                return True
            pump.step(min(left, _LOOK))
        return False

    def _end(self, pump: _Pump, child: ChildProgram) -> None:
        """Stop everything: SIGTERM first, then SIGKILL, then leftover processes."""
        asked = not pump.ended
        if asked:
            child.signal_group(signal.SIGTERM)
            deadline = monotonic() + self._limits.grace
            while not pump.ended and (left := deadline - monotonic()) > 0:
                pump.step(left)
        # Before it is reaped, while its pid cannot be reused.
        child.signal_group(signal.SIGKILL)
        if asked:
            end_leftovers(self._order.mark)
        while not pump.ended:
            pump.step(_DRAIN)
        if not self._drain(pump):
            # A process that left the group holds the pipe open.
            end_leftovers(self._order.mark)
            self._drain(pump)

    def _drain(self, pump: _Pump) -> bool:
        """Read the rest of the pipes; return whether that was all. A reader may take as long as the child's timeout."""
        deadline = monotonic() + _DRAIN
        patience = monotonic() + self._limits.timeout
        while pump.open:
            now = monotonic()
            if pump.is_waiting and not self._stopped and now < patience and self.wanted():
                deadline = now + _DRAIN
            elif now >= deadline:
                return False
            pump.step(min(max(0.0, deadline - now), _LOOK))
        return True

    def _close_wake(self) -> None:
        with self._waking:  # the descriptor number may be reused soon
            close(self._woken)
            close(self._wake)
            self._woken = self._wake = -1


class _Pump:
    """Moves bytes between this process and the pipes of a child, one step at a time."""

    def __init__(
        self, child: ChildProgram, given: memoryview, outputs: tuple[ChildOutput, ChildOutput], woken: int
    ) -> None:
        self._given = given
        self._input = child.stdin
        self.open = {child.stdout: outputs[0], child.stderr: outputs[1]}
        """Outputs by descriptor, while more may come."""
        self._ended_fd = child.ended
        self._woken = woken
        self.ended = False
        for descriptor in (*self.open, *(() if child.stdin is None else (child.stdin,))):
            set_blocking(descriptor, False)

    @property
    def is_waiting(self) -> bool:
        """Whether a reader has to take output before more can be read."""
        return any(output.is_full() for output in self.open.values())

    def step(self, seconds: float) -> None:
        """Wait for an event, and handle it."""
        watched = poll()
        watched.register(self._woken, POLLIN)
        if not self.ended:
            watched.register(self._ended_fd, POLLIN)
        if self._input is not None:
            watched.register(self._input, POLLOUT)
        for descriptor, output in self.open.items():
            if not output.is_full():
                watched.register(descriptor, POLLIN)
        for descriptor, _ in watched.poll(max(1, min(seconds, 3600) * 1000)):
            if descriptor == self._woken:
                with suppress(OSError):
                    read(descriptor, 4096)
            elif descriptor == self._ended_fd:
                self.ended = True
            elif descriptor == self._input:
                self._write()
            else:
                self._read(descriptor)

    def close(self) -> None:
        """Close all open descriptors."""
        for descriptor in (*self.open, *(() if self._input is None else (self._input,))):
            close(descriptor)
        self.open, self._input = {}, None

    def _read(self, descriptor: int) -> None:
        try:
            chunk = read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if chunk:
            self.open[descriptor].add(chunk)
        else:
            del self.open[descriptor]
            close(descriptor)

    def _write(self) -> None:
        if self._input is None:
            return
        try:
            self._given = self._given[write(self._input, self._given[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._given = self._given[:0]  # the child closed its input
        if not self._given:
            close(self._input)
            self._input = None
