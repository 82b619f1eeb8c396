"""One timer for the deadlines of many calls: a timer per call would cost more than the rest of a call."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping


class HasDeadline(Protocol):
    """A pending call."""

    deadline: float
    """Loop time at which it expires; infinite for none."""


Pending = TypeVar("Pending", bound=HasDeadline)


class DeadlineTimer(Generic[Pending]):
    """Calls a function for each pending call whose deadline has passed; the function sets its next deadline."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pending: Mapping[int, Pending],
        expire: Callable[[Pending, float], None],
        *,
        wrap: Callable[[Callable[[], None]], Callable[[], None]] = lambda function: function,
    ) -> None:
        """Watch these calls; ``wrap`` wraps the callback, which the loop exposes."""
        self._loop = loop
        self._pending = pending
        self._expire = expire
        self._due = wrap(self._fire)
        self._timer: asyncio.TimerHandle | None = None
        self._next = inf

    def watch(self, deadline: float) -> None:
        """Wake up at a new deadline of one of the calls."""
        if deadline < self._next:
            self.close()
            self._next = deadline
            self._timer = self._loop.call_at(deadline, self._due)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer, self._next = None, inf
        now = self._loop.time()
        for call in tuple(self._pending.values()):
            if call.deadline <= now:
                self._expire(call, now)
        self.watch(min((call.deadline for call in self._pending.values()), default=inf))
