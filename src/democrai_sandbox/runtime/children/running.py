"""A child and its waiting callers: the link between the child's thread and the callers."""

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
"""Bytes buffered for a reader before the child has to wait."""


class Stream(Output):
    """Output of a child, until its reader takes it."""

    def __init__(self, arrived: Callable[[], None]) -> None:
        """Take ``arrived``, which is called for new output."""
        super().__init__(0)
        self._arrived = arrived
        self._lock = threading.Lock()
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def add(self, chunk: bytes) -> None:
        """Add a chunk of output."""
        with self._lock:
            self._chunks.append(chunk)
            self._size += len(chunk)
        self._arrived()

    def is_full(self) -> bool:
        """Return whether the reader is behind."""
        return self._size >= _BUFFERED

    def take(self) -> bytes:
        """Return and remove all buffered output."""
        with self._lock:
            data = b"".join(self._chunks)
            self._chunks.clear()
            self._size = 0
        return data


class Running:
    """An ordered child. ``run`` is its thread; all other methods are thread-safe."""

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
        """Whether no caller will ask for it any more."""
        self._stream = Stream(self._tell) if limits.stream else None
        self._news = threading.Condition()
        self._waiting: list[Callable[[], object]] = []
        self._finished: Finished | None = None
        self._wanted = wanted
        self._supervision = Supervision(order, limits, launcher, given=given, stream=self._stream, wanted=wanted)

    def run(self) -> None:
        """Run the child on this thread."""
        try:
            finished = self._supervision.run()
        except Exception as error:  # noqa: BLE001 - waiting callers need an answer in any case
            finished = Finished(failure=f"supervision of the program failed: {type(error).__name__}: {error}")
        self._finished = finished
        self.forgotten = self.forgotten or not self._wanted()
        self._tell()

    def is_abandoned(self) -> bool:
        """Return whether it has ended, and its caller is gone."""
        return self._finished is not None and not self._wanted()

    def stop(self) -> None:
        """Stop it, with everything it started."""
        self._supervision.stop()

    def wait_for_end(self, patience: float) -> bool:
        """Wait until nothing of it is left; return whether that is so."""
        with self._news:
            return self._news.wait_for(lambda: self._finished is not None, patience)

    def ended(self) -> tuple[Any, ...] | None:
        """Return its end as plain data; None while it runs."""
        return None if self._finished is None else tuple(self._finished)

    def next_piece(self) -> bytes | None:
        """Return its output since the last call, empty at the end; None while no output is available."""
        if self._stream is None:
            return b""
        at_end = self._finished is not None  # checked first: nothing is added after the end
        piece = self._stream.take()
        if piece:
            self._supervision.nudge()
        return piece if piece or at_end else None

    def when(self, ready: Callable[[], Any], loop: asyncio.AbstractEventLoop | None) -> Any:
        """Return the first result of ``ready`` that is not None: on a loop as a future, elsewhere after waiting."""
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
            with suppress(RuntimeError):  # the loop is closed
                each()
