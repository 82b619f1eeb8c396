"""Thread-safe counters of results, exact and without a lock in a check."""

from __future__ import annotations

import threading
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import DecisionCode

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = "failed"
"""Name of the counter for failed checks."""


class Tally:
    """Number of times that each result was returned."""

    __slots__ = ("_counters", "_lock", "_looks")

    def __init__(self) -> None:
        """Set all counters to zero."""
        names = (*(code.value for code in DecisionCode), FAILED)
        # Advancing a counter is atomic in the interpreter: two threads never get the same number.
        self._counters: Mapping[str, count[int]] = MappingProxyType({name: count() for name in names})
        self._looks = 0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one result."""
        next(self._counters[name])

    def totals(self) -> dict[str, int]:
        """Return the totals. Reading a counter advances it too, so the number of reads is subtracted."""
        with self._lock:
            found = {name: next(counter) - self._looks for name, counter in self._counters.items()}
            self._looks += 1
        return found
