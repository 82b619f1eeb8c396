"""Tells a node what was heard, in a thread of its own: a node that takes its time holds up no connection."""

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
"""Seconds between two calls: however many events come in, a node looks a hundred times a second at most."""


class Inbox:
    """Keeps what was heard until the node has time for it: one generation, the highest, and whether there was a gap.

    Knows nothing of the node: other buses of the process hold inboxes.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._gap = False
        self._highest: int | None = None
        self._closed = False

    def hear(self, generation: int) -> None:
        """Remember that another node told of this generation."""
        with self._changed:
            if self._highest is None or generation > self._highest:
                self._highest = generation
            self._changed.notify_all()

    def miss(self) -> None:
        """Remember that events may have been missed."""
        with self._changed:
            self._gap = True
            self._changed.notify_all()

    def close(self) -> None:
        """Give out nothing any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        """Whether it gives out nothing any more."""
        return self._closed

    def take(self) -> list[int | None]:
        """Wait for news, and return it: a gap as None, a generation as it is. Nothing once it is closed."""
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
    """An inbox, and the thread that tells the node what is in it. No attribute leads to the node."""

    def __init__(self, *, name: str) -> None:
        self.inbox = Inbox()
        self._name = f"{name}-ear"
        self._worker: Worker | None = None

    def start(self, heard: Heard) -> None:
        """Begin to call ``heard``."""
        inbox = self.inbox
        self._worker = Worker(self._name, lambda: _tell_all(inbox, heard))
        self._worker.start()

    def stop(self) -> None:
        """Tell nothing any more; return when the last call is over, unless it is that call which asks."""
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
            except Exception:  # noqa: BLE001 - whatever it was, the next event is told
                _LOG.exception("what a node does about an event failed; it goes on listening")
        inbox.rest(_REST)
