"""What the helper waits for: connections, the end of the application, the wish to end, and the time for a refresh."""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    from .processes import Handle

_LOOK_AGAIN = 1.0
"""How often the application is looked at where the kernel has no descriptor that tells of its end, in seconds."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Happened(Enum):
    """What the waiting was ended by."""

    CONNECTION = auto()
    PARENT_GONE = auto()
    ASKED_TO_END = auto()


class Watch:
    """Waits for several things at once; the end of the application comes before everything else."""

    def __init__(self, parent: Handle, listener: socket.socket) -> None:
        self._parent = parent
        self._listener = listener
        self._looked = time.monotonic()
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(self._woken, select.POLLIN)
        if parent.descriptor is not None:
            self._poll.register(parent.descriptor, select.POLLIN)

    def heed_signals(self) -> None:
        """Take the usual signals for a wish to end. Only in the main thread."""
        for number in _ENDING:
            signal.signal(number, lambda *_: self.wake())

    def wake(self) -> None:
        """Make the waiting end with the wish to end; from any thread, or from a signal."""
        with suppress(BlockingIOError):  # it is awake already
            os.write(self._waker, b"\0")

    def next(self) -> Happened:
        """Wait."""
        patience = None if self._parent.descriptor is not None else _LOOK_AGAIN * 1000
        while True:
            ready = {descriptor for descriptor, _ in self._poll.poll(patience)}
            if self._parent.descriptor in ready or self._seen_dead():
                return Happened.PARENT_GONE
            if self._woken in ready:
                return Happened.ASKED_TO_END
            if ready:
                return Happened.CONNECTION

    def parent_ends_within(self, seconds: float) -> bool:
        """Wait whether the application ends too, as when both were asked to. A further wish to end is heeded."""
        self._poll.unregister(self._listener)
        with suppress(BlockingIOError):
            os.read(self._woken, 64)
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in self._poll.poll(min(left, _LOOK_AGAIN / 4) * 1000)}
            if not self._parent.alive():
                return True
            if self._woken in ready:
                break
        return False

    def _seen_dead(self) -> bool:
        """Look at the application now and then, also while a flood of connections leaves no pause."""
        if self._parent.descriptor is not None or time.monotonic() - self._looked < _LOOK_AGAIN:
            return False
        self._looked = time.monotonic()
        return not self._parent.alive()
