"""Events within one process."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .connected_bus import EventInbox
from .message import checked_channel, new_node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CHECKS: Mapping[str, Callable[[object], Any]] = MappingProxyType({})
"""Validator of each setting except the channel: none."""

_lock = threading.Lock()
_listening: defaultdict[str, dict[str, EventInbox]] = defaultdict(dict)
"""Inboxes by channel and node."""


class MemoryBus:
    """Bus between the started buses of the same channel in this process."""

    def __init__(self, *, channel: str = "access") -> None:
        self.node = new_node()
        self._channel = checked_channel(channel)
        self._process = os.getpid()
        self._inbox = EventInbox()
        self._used = False

    @property
    def connected(self) -> bool:
        """Whether it is started and not stopped."""
        return self.node in _listening.get(self._channel, ())

    def publish(self, generation: int) -> None:
        """Notify the other buses of the channel; does nothing before ``start`` and after ``stop``."""
        if os.getpid() != self._process:
            return
        with _lock:
            inboxes = dict(_listening[self._channel])
        if inboxes.pop(self.node, None) is not None:
            for inbox in inboxes.values():
                inbox.hear(generation)

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Start listening; a bus can be started only once."""
        with _lock:
            if self._used:
                raise RuntimeError("a bus can be started only once; open another one")
            self._used = True
            self._inbox.start(f"events-memory-{self._channel}", heard)
            _listening[self._channel][self.node] = self._inbox
        self._inbox.miss()

    def stop(self) -> None:
        """Stop listening. May be called twice."""
        if os.getpid() != self._process:
            return
        with _lock:
            self._used = True
            _listening[self._channel].pop(self.node, None)
        self._inbox.stop()
