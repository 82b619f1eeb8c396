"""Arrivals at the servers of a test in order, so that a test can show that nothing arrived."""

from __future__ import annotations

import threading
from typing import Any


class Journal:
    """Entries of all servers of one bed: accepted connections, then the data on them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: list[dict[str, Any]] = []

    def note(self, at: str, event: str, **details: Any) -> None:
        """Record an arrival."""
        with self._lock:
            self._entries.append({"at": at, "event": event, **details})

    def drain(self) -> list[dict[str, Any]]:
        """Return and remove the entries."""
        with self._lock:
            entries, self._entries = self._entries, []
        return entries
