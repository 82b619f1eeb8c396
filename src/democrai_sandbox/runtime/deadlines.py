"""Deadlines of calls, kept with one timer per loop: a timer per call would cost more than most calls do.

A late call is canceled. If its code swallows the cancellation, its coroutine is abandoned after a grace period and the
caller gets its error immediately.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from .hidden import hidden

if TYPE_CHECKING:
    from democrai_sandbox.guard import Door

GRACE_SECONDS = 1.0


class Deadline:
    """Deadline of one call that a task awaits."""

    __slots__ = ("before", "cancels", "task", "when", "work")

    def __init__(self, task: asyncio.Task[Any], work: Any, when: float) -> None:
        """Take the task, the work it awaits, and the loop time of the deadline."""
        self.task = task
        self.work = work
        self.when = when
        self.cancels = 0
        self.before = task.cancelling()

    @property
    def is_past(self) -> bool:
        """Whether the deadline has canceled the call."""
        return self.cancels > 0

    def settle(self) -> bool:
        """Undo the deadline's cancellations; return whether other code also canceled the task."""
        while self.cancels and self.task.cancelling() > self.before:
            self.task.uncancel()
            self.cancels -= 1
        return self.task.cancelling() > self.before

    def expire(self) -> None:
        """Cancel the call; on the second expiry, abandon it."""
        if self.cancels and hasattr(self.work, "abandon"):
            self.work.abandon()
        self.cancels += 1
        self.task.cancel()


class Deadlines:
    """Deadlines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due = hidden(self._fire)
        self._pending: dict[int, Deadline] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = float("inf")

    def add(self, task: asyncio.Task[Any], work: Any, seconds: float) -> Deadline:
        """Cancel a call that takes longer than ``seconds``."""
        deadline = Deadline(task, work, self._loop.time() + seconds)
        self._pending[id(deadline)] = deadline
        if deadline.when < self._next:
            self._arm(deadline.when)
        return deadline

    def drop(self, deadline: Deadline) -> None:
        """Remove the deadline of a finished call."""
        del self._pending[id(deadline)]

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next = when
        self._timer = self._loop.call_at(when, self._due)

    def _fire(self) -> None:
        self._timer, self._next = None, float("inf")
        now = self._loop.time()
        for deadline in list(self._pending.values()):
            if deadline.when <= now:
                deadline.expire()
                deadline.when = now + GRACE_SECONDS
        if self._pending:
            self._arm(min(deadline.when for deadline in self._pending.values()))


def deadlines() -> Deadlines:
    """Return the deadlines of the running loop."""
    found: Deadlines = _of(asyncio.get_running_loop())
    return found


def _keep() -> Door:
    """Return a lookup of deadlines by loop. A module variable would let guarded code postpone its deadlines."""
    loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Deadlines] = WeakKeyDictionary()

    def find(loop: asyncio.AbstractEventLoop) -> Deadlines:
        found = loops.get(loop)
        if found is None:
            found = loops[loop] = Deadlines(loop)
        return found

    return hidden(find)


_of = _keep()
