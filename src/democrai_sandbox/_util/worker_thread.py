"""Threads that do not expose their work."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class WorkerThread(threading.Thread):
    """Daemon thread that drops the reference to its work when it starts.

    An ordinary thread keeps its function as an attribute, and guarded code can list all threads. From the function it
    could reach the decisions in memory.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._work: Callable[[], None] | None = work

    def run(self) -> None:
        """Do the work."""
        work, self._work = self._work, None
        if work is not None:
            work()
