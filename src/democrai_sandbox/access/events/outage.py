"""How a connection that is lost is tried again, and how its loss is told: quickly, never in step, and once."""

from __future__ import annotations

import logging
import random
import threading
import time

_LOG = logging.getLogger(__name__)
_SPREAD = random.Random()  # noqa: S311 - spreads load, keeps no secret; the shared one is the application's
_BRIEF = 1.0
"""Seconds. What is over before, such as a node taking over from another, is ordinary."""


class Backoff:
    """Delays that double up to a longest one, with jitter: nodes that lost the same peer do not march in step."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._delay = first

    def next(self) -> float:
        """Return how many seconds to wait now."""
        delay, self._delay = self._delay, min(self._delay * 2, self._longest)
        return delay * _SPREAD.uniform(0.5, 1)

    def reset(self) -> None:
        """Begin again with the shortest delay."""
        self._delay = self._first


class Outage:
    """Whether events get through in both directions; warns once when they do not for longer than a moment."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._broken: set[str] = set()
        self._since = 0.0
        self._told = False

    @property
    def on(self) -> bool:
        """Whether it lasts still."""
        return bool(self._broken)

    def failed(self, direction: str, error: BaseException) -> None:
        """Note that an attempt failed."""
        with self._lock:
            if not self._broken:
                self._since = time.monotonic()
            self._broken.add(direction)
            if self._told or time.monotonic() - self._since < _BRIEF:
                return
            self._told = True
        # The text of an error may come from the other side; its kind and its text in quotes are safe to log.
        _LOG.warning(
            "%s: events do not get through (%s: %.200r); decisions are refreshed from the database meanwhile",
            self._name,
            type(error).__name__,
            str(error),
        )

    def worked(self, direction: str) -> None:
        """Note that an attempt succeeded."""
        with self._lock:
            self._broken.discard(direction)
            if self._broken or not self._told:
                return
            self._told = False
        _LOG.warning("%s: events get through again", self._name)
