"""Time limits of an agent's run with one timer: for the whole run, and for each tool call.

``asyncio.timeout`` around every call would set a timer each time. All calls have the same timeout, so a timer that was
set before a call began fires before the call's deadline, and is then set to that deadline.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class Patience:
    """Context for a whole run; ``begin`` and ``end`` surround a part. Work past its deadline is canceled."""

    def __init__(self, seconds: float, part_seconds: float) -> None:
        """Take the limits for the run and for a part."""
        self._seconds, self._part_seconds = seconds, part_seconds
        self._part_end: float | None = None
        self._cancelled = ""

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a running task")
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
        """End the part, and undo its own cancellation if the code swallowed it."""
        self._part_end = None
        self.part_is_over_time()

    def part_is_over_time(self) -> bool:
        """Return whether a canceled part exceeded its own timeout; undo its cancellation in that case."""
        if self._cancelled != "part":
            return False
        self._cancelled = ""
        return self._task.uncancel() <= self._before

    def check(self) -> None:
        """Raise the cancellation of the task if the code that ran swallowed it."""
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
