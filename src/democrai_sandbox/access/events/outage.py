"""Reconnection delays with jitter, and one warning per outage."""

from __future__ import annotations

import logging
import random
import threading
import time

_LOG = logging.getLogger(__name__)
_SPREAD = random.Random()  # noqa: S311 - spreads load, keeps no secret; the shared one is the application's
_BRIEF = 1.0
"""Seconds. Shorter outages, such as a change of the hub, are normal and not reported."""


class Backoff:
    """Exponential delays up to a maximum, with jitter, so that nodes that lost the same peer do not retry together."""

    def __init__(self, *, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest
        self._delay = first

    def next(self) -> float:
        """Return the number of seconds to wait now."""
        delay, self._delay = self._delay, min(self._delay * 2, self._longest)
        return delay * _SPREAD.uniform(0.5, 1)

    def reset(self) -> None:
        """Restart with the shortest delay."""
        self._delay = self._first


class Outage:
    """State of event delivery in both directions; warns once when it fails for longer than a moment."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._broken: set[str] = set()
        self._since = 0.0
        self._told = False

    @property
    def on(self) -> bool:
        """Whether the outage continues."""
        return bool(self._broken)

    def failed(self, direction: str, error: BaseException) -> None:
        """Record a failed attempt."""
        with self._lock:
            if not self._broken:
                self._since = time.monotonic()
            self._broken.add(direction)
            if self._told or time.monotonic() - self._since < _BRIEF:
                return
            self._told = True
        # The error text may come from the peer, so it is logged quoted and truncated.
        _LOG.warning(
            "%s: events are not delivered (%s: %.200r); decisions are polled from the database meanwhile",
            self._name,
            type(error).__name__,
            str(error),
        )

    def worked(self, direction: str) -> None:
        """Record a successful attempt."""
        with self._lock:
            self._broken.discard(direction)
            if self._broken or not self._told:
                return
            self._told = False
        _LOG.warning("%s: events are delivered again", self._name)
