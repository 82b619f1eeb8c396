"""A child and those who wait for it: the child's thread and its callers meet here."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .supervision import Finished, Output, Supervision

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from .interface import Launcher, Order
    from .supervision import Limits

_BUFFERED = 1 << 18
"""Bytes that wait for a reader before the child has to."""


class Stream(Output):
    """What a child writes, until its reader takes it."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        """Begin with nothing; ``arrived`` is called when something came."""
        super().__init__(0)
        self._arrived = arrived
        self._lock = threading.Lock()
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Take what was read."""
        with self._lock:
            self._chunks.append(chunk)
            self._size += len(chunk)
        self._arrived()

    def is_full(self) -> bool:
        """Tell whether the reader is behind."""
        return self._size >= _BUFFERED

    def take(self) -> bytes:
        """Return all that has come."""
        with self._lock:
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
        return data


class Running:
    """A child that was ordered. ``run`` is its thread; everything else may be called from any."""

    def __init__(
        self,
        owner: tuple[str, ...],
        order: Order,
        limits: Limits,
        launcher: Launcher,
        *,
        given: bytes,
        wanted: Callable[[], bool],
    ) -> None:
        """Prepare it; nothing is started before ``run``."""
        self.owner = owner
        self.forgotten = False
        """Whether nobody will ask for it any more."""
        self._stream = Stream(self._tell) if limits.stream else None
        self._news = threading.Condition()
        self._waiting: list[Callable[[], object]] = []
        self._finished: Finished | None = None
        self._wanted = wanted
        self._supervision = Supervision(order, limits, launcher, given=given, stream=self._stream, wanted=wanted)

    def run(self) -> None:
        """Be the thread of the child."""
        try:
            finished = self._supervision.run()
        except Exception as error:  # noqa: BLE001 - whoever waits has to be told, whatever it was
            finished = Finished(failure=f"watching the program failed: {type(error).__name__}: {error}")
        self._finished = finished
        self.forgotten = self.forgotten or not self._wanted()
        self._tell()

    def is_abandoned(self) -> bool:
        """Tell whether it has ended, and nobody will ask how."""
        return self._finished is not None and not self._wanted()

    def stop(self) -> None:
        """Have it ended, with all that it started."""
        self._supervision.stop()

    def wait_for_end(self, patience: float) -> bool:
        """Wait until nothing of it is left; return whether that is so."""
        with self._news:
            return self._news.wait_for(lambda: self._finished is not None, patience)

    def ended(self) -> tuple[Any, ...] | None:
        """Return how it ended, as plain data; None while it runs."""
        return None if self._finished is None else tuple(self._finished)

    def next_piece(self) -> bytes | None:
        """Return what it wrote since the last time, empty at the end; None while there is nothing."""
        if self._stream is None:
            return b""
        at_end = self._finished is not None  # looked at first: nothing is added after the end
        piece = self._stream.take()
        if piece:
            self._supervision.nudge()
        return piece if piece or at_end else None

    def when(self, ready: Callable[[], Any], loop: asyncio.AbstractEventLoop | None) -> Any:
        """Return what ``ready`` gives once that is not None: on a loop as a future, elsewhere after waiting."""
        if loop is None:
            with self._news:
                while (answer := ready()) is None:
                    self._news.wait()
            return answer
        future = loop.create_future()

        def look() -> None:
            if future.done():
                return
            with self._news:
                answer = ready()
                if answer is None:
                    self._waiting.append(lambda: loop.call_soon_threadsafe(look))
            if answer is not None:
                future.set_result(answer)

        look()
        return future

    def _tell(self) -> None:
        with self._news:
            waiting, self._waiting = self._waiting, []
            self._news.notify_all()
        for each in waiting:
            with suppress(RuntimeError):  # that loop is closed
                each()
