"""Counting answers, on whatever thread they are given: exact, and without a lock on the way of a check."""

from __future__ import annotations

import threading
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import DecisionCode

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILED = "failed"
"""No answer could be had."""


class Tally:
    """How often each answer was given."""

    __slots__ = ("_counters", "_lock", "_looks")

    def __init__(self) -> None:
        """Begin at nothing."""
        names = (*(code.value for code in DecisionCode), FAILED)
        # To advance one is a single step of the interpreter: two threads never take the same number.
        self._counters: Mapping[str, count[int]] = MappingProxyType({name: count() for name in names})
        self._looks = 0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one answer."""
        next(self._counters[name])

    def totals(self) -> dict[str, int]:
        """Return the numbers. To look at a counter advances it too, so that looks are taken off."""
        with self._lock:
            found = {name: next(counter) - self._looks for name, counter in self._counters.items()}
            self._looks += 1
        return found
