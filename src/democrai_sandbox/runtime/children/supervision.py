"""One child from its start to its end, on a thread of its own: input, output within limits, time, and what it left.

Nothing here depends on the loop that waits: guarded code may block that, and the child is ended all the same. Functions
by which descriptors are used are held by their names: a subject could replace them, and have others used, or closed.
"""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from os import O_CLOEXEC, O_NONBLOCK, close, pipe2, read, set_blocking, write
from select import POLLIN, POLLOUT, poll
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import KernelLayerError

from .remains import end_remains

if TYPE_CHECKING:
    from collections.abc import Callable

    from .interface import Child, Launcher, Order

    Wanted = Callable[[], bool]

_CHUNK = 65536
_LOOK = 0.25
"""Seconds between looks at whoever waits for the child."""
_DRAIN = 1.0
"""Seconds for what is still in the pipes after the end of a child."""


class Limits(NamedTuple):
    """How long a child may run, and how much of what it says is kept."""

    timeout: float
    grace: float
    """Between the request to end and the end."""
    stdout: int
    stderr: int
    stream: bool
    """Whether what it writes is handed on instead of kept; it has to wait then while nobody reads."""


class Finished(NamedTuple):
    """How it ended. ``failure`` is why it could not be started at all."""

    returncode: int = -1
    stdout: bytes = b""
    stderr: bytes = b""
    truncated: bool = False
    timed_out: bool = False
    unenforced: tuple[str, ...] = ()
    """What nothing below Python kept of the caller's rules, where a launcher was to."""
    failure: str = ""


class Output:
    """What one pipe gave: so much of it is kept, the rest is read and dropped, so that the child goes on."""

    def __init__(self, limit: int) -> None:
        """Keep at most so many bytes."""
        self._kept = bytearray()
        self._limit = limit
        self.truncated = False

    def add(self, chunk: bytes) -> None:
        """Take what was read."""
        room = self._limit - len(self._kept)
        self._kept += chunk[:room]
        self.truncated = self.truncated or len(chunk) > room

    def is_full(self) -> bool:
        """Return False: it can be read on."""
        return False

    @property
    def kept(self) -> bytes:
        """What was kept."""
        return bytes(self._kept)


class Supervision:
    """Runs a child. ``run`` is the thread; ``stop`` and ``nudge`` may be called from others."""

    def __init__(
        self, order: Order, limits: Limits, launcher: Launcher, *, given: bytes, stream: Output | None, wanted: Wanted
    ) -> None:
        """Prepare it; nothing is started before ``run``. ``wanted`` tells whether somebody waits for it still."""
        self._order = order
        self._limits = limits
        self._launcher = launcher
        self._given = memoryview(given)
        self._wanted = wanted
        self._outputs = (stream or Output(limits.stdout), Output(limits.stderr))
        self._stopped = False
        self._waking = threading.Lock()
        self._woken, self._wake = pipe2(O_CLOEXEC | O_NONBLOCK)

    def stop(self) -> None:
        """Have the child ended, with all that it started."""
        self._stopped = True
        self.nudge()

    def nudge(self) -> None:
        """Have it looked around: somebody has read, or wants it to stop."""
        with self._waking, suppress(BlockingIOError):
            if self._wake >= 0:
                write(self._wake, b"x")

    def run(self) -> Finished:
        """Start the child, and return when nothing of it is left."""
        try:
            child = self._launcher.start(self._order)
        except (OSError, ValueError, KernelLayerError) as error:
            self._close_wake()
            return Finished(failure=str(getattr(error, "strerror", None) or error))
        pump = _Pump(child, self._given, self._outputs, self._woken)
        returncode = None
        try:
            timed_out = self._watch(pump)
            self._end(pump, child)
            returncode = child.collect()
        finally:
            if returncode is None:  # whatever went wrong here, the child does not stay
                child.signal_group(signal.SIGKILL)
                child.collect()
            pump.close()
            self._close_wake()
        out, err = self._outputs
        truncated, too_late = out.truncated or err.truncated, timed_out or child.timed_out
        return Finished(returncode, out.kept, err.kept, truncated, too_late, child.unenforced, child.failure)

    def _watch(self, pump: _Pump) -> bool:
        """Wait for the end of the program; return whether time was up first."""
        deadline = monotonic() + self._limits.timeout
        while not pump.ended and not self._stopped and self._wanted():
            left = deadline - monotonic()
            if left <= 0:
                return True
            pump.step(min(left, _LOOK))
        return False

    def _end(self, pump: _Pump, child: Child) -> None:
        """Leave nothing of it: first ask, then insist, then look for what went its own ways."""
        asked = not pump.ended
        if asked:
            child.signal_group(signal.SIGTERM)
            deadline = monotonic() + self._limits.grace
            while not pump.ended and (left := deadline - monotonic()) > 0:
                pump.step(left)
        # Before it is collected: until then nobody else can have its number.
        child.signal_group(signal.SIGKILL)
        if asked:
            end_remains(self._order.mark)
        while not pump.ended:
            pump.step(_DRAIN)
        if not self._drain(pump):
            # Somebody else has the pipe open: a process that left the group.
            end_remains(self._order.mark)
            self._drain(pump)

    def _drain(self, pump: _Pump) -> bool:
        """Read what is left in the pipes; return whether that was all. A reader is waited for as long as it may run."""
        deadline = monotonic() + _DRAIN
        patience = monotonic() + self._limits.timeout
        while pump.is_open:
            now = monotonic()
            if pump.is_waiting and not self._stopped and now < patience and self._wanted():
                deadline = now + _DRAIN
            elif now >= deadline:
                return False
            pump.step(min(max(0.0, deadline - now), _LOOK))
        return True

    def _close_wake(self) -> None:
        with self._waking:  # its number is soon another's
            close(self._woken)
            close(self._wake)
            self._woken = self._wake = -1


class _Pump:
    """Moves bytes between this process and the pipes of a child, a step at a time."""

    def __init__(self, child: Child, given: memoryview, outputs: tuple[Output, Output], woken: int) -> None:
        self._given = given
        self._input = child.stdin
        self._open = {child.stdout: outputs[0], child.stderr: outputs[1]}
        self._ended_fd = child.ended
        self._woken = woken
        self.ended = False
        for descriptor in (*self._open, *(() if child.stdin is None else (child.stdin,))):
            set_blocking(descriptor, False)

    @property
    def is_open(self) -> bool:
        """Whether more may come."""
        return bool(self._open)

    @property
    def is_waiting(self) -> bool:
        """Whether a reader has to take something before more can be read."""
        return any(output.is_full() for output in self._open.values())

    def step(self, seconds: float) -> None:
        """Wait for something to happen, and do what it takes."""
        watched = poll()
        watched.register(self._woken, POLLIN)
        if not self.ended:
            watched.register(self._ended_fd, POLLIN)
        if self._input is not None:
            watched.register(self._input, POLLOUT)
        for descriptor, output in self._open.items():
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
        """Close what is open still."""
        for descriptor in (*self._open, *(() if self._input is None else (self._input,))):
            close(descriptor)
        self._open, self._input = {}, None

    def _read(self, descriptor: int) -> None:
        try:
            chunk = read(descriptor, _CHUNK)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if chunk:
            self._open[descriptor].add(chunk)
        else:
            del self._open[descriptor]
            close(descriptor)

    def _write(self) -> None:
        if self._input is None:
            return
        try:
            self._given = self._given[write(self._input, self._given[:_CHUNK]) :]
        except BlockingIOError:
            return
        except OSError:
            self._given = self._given[:0]  # the child does not want more
        if not self._given:
            close(self._input)
            self._input = None
