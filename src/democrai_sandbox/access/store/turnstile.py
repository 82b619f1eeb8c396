"""Fair waiting: who came first goes first, so that nobody among many threads waits until time is up."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Turnstile:
    """Lets a number of threads in at a time. Who leaves hands the place over, instead of leaving it to the quickest."""

    def __init__(self, places: int) -> None:
        """Begin with all places free."""
        self._lock = threading.Lock()
        self._free = places
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def entered(self, patience: float) -> Iterator[None]:
        """Hold a place; raises ``TimeoutError`` when there was none in time."""
        self._enter(patience)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, patience: float) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        try:
            if turn.wait(patience):
                return
        except BaseException:
            self._give_up(turn)
            raise
        self._give_up(turn)
        raise TimeoutError(f"no turn within {patience} seconds")

    def _give_up(self, turn: threading.Event) -> None:
        with self._lock:
            if not turn.is_set():
                self._waiting.remove(turn)
                return
        self._leave()  # the place came at the last moment

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
