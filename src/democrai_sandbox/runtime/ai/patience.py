"""Time limits of an agent's run with one timer: for all of it, and for each call of a tool in turn.

``asyncio.timeout`` around every call would set a timer each time. A call lasts as long as any other may, so a timer
that was set before it began goes off before it is over time, and then is set to when that will be.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Patience:
    """A context for a whole run; ``begin`` and ``end`` are around a part. What is over time is cancelled."""

    def __init__(self, seconds: float, part_seconds: float) -> None:
        """Take the limits, for the run and for a part."""
        self._seconds, self._part_seconds = seconds, part_seconds
        self._part_end: float | None = None
        self._cancelled = ""

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit is for a task")
        self._task, self._loop = task, asyncio.get_running_loop()
        self._before = task.cancelling()
        now = self._loop.time()
        self._end = now + self._seconds
        self._timer = self._loop.call_at(min(self._end, now + self._part_seconds), self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._cancelled and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def begin(self) -> None:
        """Begin a part."""
        self._part_end = self._loop.time() + self._part_seconds

    def end(self) -> None:
        """End the part, whatever became of it: one that went on when it was cancelled does not pass that on."""
        self._part_end = None
        self.part_is_over_time()

    def part_is_over_time(self) -> bool:
        """Tell, when a part was cancelled, whether its own time was up; its cancellation is then taken back."""
        if self._cancelled != "part":
            return False
        self._cancelled = ""
        return self._task.uncancel() <= self._before

    def check(self) -> None:
        """Go no further when the task is to end, even if the code that was told so took no notice."""
        if self._task.cancelling() > self._before:
            raise asyncio.CancelledError

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._end or (self._part_end is not None and now >= self._part_end):
            self._cancelled = "run" if now >= self._end else "part"
            self._part_end = None
            self._task.cancel()
        if now < self._end:
            next_part = self._part_end or now + self._part_seconds
            self._timer = self._loop.call_at(min(self._end, next_part), self._look)
