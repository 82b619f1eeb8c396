"""Threads of the service, which show nobody what they work on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Worker(threading.Thread):
    """A daemon thread that forgets its work when it begins it.

    An ordinary thread keeps its function as an attribute, and every thread can be listed: guarded code would come from
    there to the object that the function belongs to, and so to the decisions in memory.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        """Keep the work until ``start``."""
        super().__init__(name=name, daemon=True)
        self._work: Callable[[], None] | None = work

    def run(self) -> None:
        """Do the work."""
        work, self._work = self._work, None
        if work is not None:
            work()
