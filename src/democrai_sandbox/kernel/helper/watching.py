"""Wait for events of the helper: connections, the application's end, a stop signal, and the time of a refresh."""

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
"""Seconds between two checks of the application on kernels without process descriptors."""
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Happened(Enum):
    """Event that ended the wait."""

    CONNECTION = auto()
    PARENT_GONE = auto()
    ASKED_TO_END = auto()


class Watch:
    """Wait for several events; the application's end has priority."""

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
        """Treat SIGTERM and SIGINT as a stop request. Call from the main thread only."""
        for number in _ENDING:
            signal.signal(number, lambda *_: self.wake())

    def wake(self) -> None:
        """End the wait with a stop request, from any thread or signal handler."""
        with suppress(BlockingIOError):  # already woken
            os.write(self._waker, b"\0")

    def next(self) -> Happened:
        """Wait for the next event and return it."""
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
        """Wait for the application's end, if both were stopped together. Another stop request ends the wait."""
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
        """Check the application periodically, even if connections arrive without a pause."""
        if self._parent.descriptor is not None or time.monotonic() - self._looked < _LOOK_AGAIN:
            return False
        self._looked = time.monotonic()
        return not self._parent.alive()
