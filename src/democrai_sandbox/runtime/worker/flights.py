"""Calls in flight, on the host's side: who waits for which answer, and until when."""

from __future__ import annotations

import asyncio
from collections import deque
from math import inf
from typing import TYPE_CHECKING, Any

from .errors import FrameError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .views import Standing

CREDIT = 16
"""Items of a stream that may be on their way."""


class Flight:
    """One call, from its frame until the worker says that it is over: also when nobody waits for it any more."""

    __slots__ = ("cancelled", "deadline", "future", "number", "on_lane", "overdue", "progress", "seconds", "standing")

    def __init__(
        self, number: int, standing: Standing, future: asyncio.Future[Any], progress: Callable[..., Any] | None
    ) -> None:
        """Begin."""
        self.number = number
        self.standing = standing
        self.future = future
        self.progress = progress
        self.on_lane = False
        self.cancelled = False
        """Whether the worker was told so."""
        self.seconds = 0.0
        """That it may take."""
        self.deadline = inf
        self.overdue = False
        """Whether that time is over, and it was told so."""

    def land(self, outcome: Any) -> None:
        """Give the answer to whoever waits."""
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Give an error to whoever waits."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # whoever waited may be gone

    def item(self, value: Any) -> None:
        """Take an item of a stream, which an ordinary call has none of."""
        del value
        raise FrameError("an item of a call that is no stream")


class StreamFlight(Flight):
    """A call whose results come one by one; ``future`` is its end."""

    __slots__ = ("_come", "_items", "_taken")

    def __init__(
        self, number: int, standing: Standing, future: asyncio.Future[Any], progress: Callable[..., Any] | None
    ) -> None:
        """Begin with room for some items."""
        super().__init__(number, standing, future, progress)
        self._items: deque[Any] = deque()
        self._come = asyncio.Event()
        self._taken = 0

    def item(self, value: Any) -> None:
        """Keep an item until it is asked for."""
        if len(self._items) >= CREDIT:
            raise FrameError("more items than were asked for")
        self._items.append(value)
        self._come.set()

    def land(self, outcome: Any) -> None:
        """Note the end, which comes after the items that are here."""
        super().land(outcome)
        self._come.set()

    def fail(self, error: BaseException) -> None:
        """Note the end."""
        super().fail(error)
        self._come.set()

    @property
    def is_empty(self) -> bool:
        """Whether the next item has to be waited for."""
        return not self._items

    async def arrival(self) -> None:
        """Wait until there is an item, or the end."""
        while not self._items and not self.future.done():
            self._come.clear()
            await self._come.wait()

    def take(self) -> tuple[Any, int]:
        """Return the next item, and how many more the worker may send now: told in lots, not one by one."""
        value = self._items.popleft()
        self._taken += 1
        if self._taken < CREDIT // 2:
            return value, 0
        more, self._taken = self._taken, 0
        return value, more
