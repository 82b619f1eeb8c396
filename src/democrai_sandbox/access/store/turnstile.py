"""Fair semaphore: waiting threads are served in order, so that none starves until its timeout."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Turnstile:
    """Semaphore that passes a released place directly to the first waiting thread."""

    def __init__(self, places: int) -> None:
        """Start with all places free."""
        self._lock = threading.Lock()
        self._free = places
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def entered(self, patience: float) -> Iterator[None]:
        """Hold a place; raises ``TimeoutError`` if none is free in time."""
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
        raise TimeoutError(f"no free place within {patience} seconds")

    def _give_up(self, turn: threading.Event) -> None:
        with self._lock:
            if not turn.is_set():
                self._waiting.remove(turn)
                return
        self._leave()  # the place was assigned at the last moment

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1
