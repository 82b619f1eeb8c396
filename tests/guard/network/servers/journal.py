"""What arrived at the servers of a test, in order, so that a test can say that nothing did."""

from __future__ import annotations

import threading
from typing import Any


class Journal:
    """Entries of every server of one bed: connections as soon as they are accepted, then what came over them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[dict[str, Any]] = []

    def note(self, at: str, event: str, **details: Any) -> None:
        """Take down that something arrived."""
        with self._lock:
            self._entries.append({"at": at, "event": event, **details})

    def drain(self) -> list[dict[str, Any]]:
        """Return what arrived since the last time, and forget it."""
        with self._lock:
            entries, self._entries = self._entries, []
        return entries
