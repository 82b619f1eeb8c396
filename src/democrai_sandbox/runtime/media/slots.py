"""Concurrency limit of fetches: a subject with many fetches delays only itself."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from democrai_sandbox.errors.media import MediaBusy

if TYPE_CHECKING:
    from .values import MediaLimits


class Slots:
    """Slots for fetches, limited per subject and in total. Waiting callers are served in order."""

    def __init__(self, limits: MediaLimits) -> None:
        """Start with all slots free."""
        self._limits = limits
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[Future[None]]] = {}

    def take(self, subject: str) -> Future[None]:
        """Return a future of a slot. A caller that stops waiting passes it to ``give_up``."""
        place: Future[None] = Future()
        with self._lock:
            queue = self._waiting.get(subject, ())
            if len(queue) >= self._limits.waiting_per_subject:
                raise MediaBusy(f"{subject} has too many running fetches")
            if not queue and self._is_free(subject):
                self._occupy(subject)
                place.set_result(None)
            else:
                self._waiting.setdefault(subject, deque()).append(place)
        return place

    def give_up(self, subject: str, place: Future[None]) -> None:
        """Stop waiting; a slot that was just assigned goes to the next caller."""
        if not place.cancel():
            self.release(subject)
            return
        with self._lock, suppress(KeyError, ValueError):
            self._waiting[subject].remove(place)

    def release(self, subject: str) -> None:
        """Release a slot."""
        with self._lock:
            self._taken[subject] -= 1
            if not self._taken[subject]:
                del self._taken[subject]
            ready = self._next()
        for place in ready:
            place.set_result(None)

    @property
    def under_way(self) -> int:
        """Number of occupied slots."""
        with self._lock:
            return sum(self._taken.values())

    def _is_free(self, subject: str) -> bool:
        own = self._taken.get(subject, 0) < self._limits.flows_per_subject
        return own and sum(self._taken.values()) < self._limits.flows

    def _occupy(self, subject: str) -> None:
        self._taken[subject] = self._taken.get(subject, 0) + 1

    def _next(self) -> list[Future[None]]:
        """Return the slots that can be assigned now, to the subject with the fewest first."""
        ready: list[Future[None]] = []
        for subject in sorted(self._waiting, key=lambda name: self._taken.get(name, 0)):
            queue = self._waiting[subject]
            while queue and self._is_free(subject):
                place = queue.popleft()
                if place.set_running_or_notify_cancel():
                    self._occupy(subject)
                    ready.append(place)
            if not queue:
                del self._waiting[subject]
        return ready
