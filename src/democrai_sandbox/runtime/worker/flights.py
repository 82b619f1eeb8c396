"""Pending calls on the host's side: the future of each result, and its deadline."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.workers import FrameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .views import Standing

CREDIT = 16
"""Stream items that may be in transit."""


class Flight:
    """One call, from its frame until the worker reports its end, even if its caller stopped waiting."""

    __slots__ = ("cancelled", "deadline", "future", "number", "on_lane", "overdue", "progress", "seconds", "standing")

    def __init__(
        self, number: int, standing: Standing, future: asyncio.Future[Any], progress: Callable[..., Any] | None
    ) -> None:
        self.number = number
        self.standing = standing
        self.future = future
        self.progress = progress
        self.on_lane = False
        self.cancelled = False
        """Whether the worker was sent a cancellation."""
        self.seconds = 0.0
        """Timeout of the call."""
        self.deadline = inf
        self.overdue = False
        """Whether the deadline has passed and the call was canceled."""

    def land(self, outcome: Any) -> None:
        """Set the result."""
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Set an error."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # mark it as retrieved, because the caller may have stopped waiting

    def item(self, value: Any) -> None:
        """Refuse a stream item, because this call is not a stream."""
        del value
        raise FrameError("a stream item for a call that is not a stream")


class StreamFlight(Flight):
    """A call whose results arrive one by one; ``future`` is its end."""

    __slots__ = ("_come", "_items", "_taken")

    def __init__(
        self, number: int, standing: Standing, future: asyncio.Future[Any], progress: Callable[..., Any] | None
    ) -> None:
        super().__init__(number, standing, future, progress)
        self._items: deque[Any] = deque()
        self._come = asyncio.Event()
        self._taken = 0

    def item(self, value: Any) -> None:
        """Store an item until it is taken."""
        if len(self._items) >= CREDIT:
            raise FrameError("more stream items than requested")
        self._items.append(value)
        self._come.set()

    def land(self, outcome: Any) -> None:
        """Record the end, which comes after the stored items."""
        super().land(outcome)
        self._come.set()

    def fail(self, error: BaseException) -> None:
        """Record the error that ends the stream."""
        super().fail(error)
        self._come.set()

    @property
    def is_empty(self) -> bool:
        """Whether the next item has not arrived yet."""
        return not self._items

    async def arrival(self) -> None:
        """Wait for an item or the end."""
        while not self._items and not self.future.done():
            self._come.clear()
            await self._come.wait()

    def take(self) -> tuple[Any, int]:
        """Return the next item, and the number of further items that the worker may send, reported in batches."""
        value = self._items.popleft()
        self._taken += 1
        if self._taken < CREDIT // 2:
            return value, 0
        more, self._taken = self._taken, 0
        return value, more
