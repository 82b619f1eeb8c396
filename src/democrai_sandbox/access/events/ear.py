"""Delivery of received events to a node in a separate thread, so that a slow node does not block a connection."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from democrai_sandbox.access.threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    Heard = Callable[[int | None], None]

_LOG = logging.getLogger(__name__)
_REST = 0.01
"""Seconds between two calls: a node gets at most a hundred calls a second."""


class Inbox:
    """Received events that wait for the node: the highest generation, and whether there was a gap.

    Has no reference to the node, because other buses of the process hold inboxes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gap = False
        self._highest: int | None = None
        self._closed = False

    def hear(self, generation: int) -> None:
        """Store a generation that another node announced."""
        with self._changed:
            if self._highest is None or generation > self._highest:
                self._highest = generation
            self._changed.notify_all()

    def miss(self) -> None:
        """Store that events may have been missed."""
        with self._changed:
            self._gap = True
            self._changed.notify_all()

    def close(self) -> None:
        """Deliver nothing anymore."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._closed

    def take(self) -> list[int | None]:
        """Wait for events and return them: None for a gap, then the generation.

        Returns an empty list once it is closed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._gap or self._highest is not None)
            if self._closed:
                return []
            news: list[int | None] = [None] if self._gap else []
            if self._highest is not None:
                news.append(self._highest)
            self._gap, self._highest = False, None
            return news

    def rest(self, seconds: float) -> None:
        """Wait for a time, or until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, timeout=seconds)


class Ear:
    """Inbox with the thread that delivers its events to the node. No attribute leads to the node."""

    def __init__(self, *, name: str) -> None:
        self.inbox = Inbox()
        self._name = f"{name}-ear"
        self._worker: Worker | None = None

    def start(self, heard: Heard) -> None:
        """Start to call ``heard``."""
        inbox = self.inbox
        self._worker = Worker(self._name, lambda: _tell_all(inbox, heard))
        self._worker.start()

    def stop(self) -> None:
        """Stop delivering and wait for the last call, unless this is called from it."""
        self.inbox.close()
        if self._worker is not None and self._worker is not threading.current_thread():
            self._worker.join()


def _tell_all(inbox: Inbox, heard: Heard) -> None:
    while news := inbox.take():
        for generation in news:
            if inbox.closed:
                return
            try:
                heard(generation)
            except Exception:  # noqa: BLE001 - the next event is still delivered
                _LOG.exception("handling an event failed; still listening")
        inbox.rest(_REST)
