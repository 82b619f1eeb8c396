"""Deadlines of calls, kept with one timer for all of them: a timer of its own would cost more than most calls do.

A call that is late is cancelled. Code that does not give in is abandoned after a grace: its coroutine goes no further,
and whoever called it is told at once.
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
    """The deadline of one call, which a task awaits."""

    __slots__ = ("before", "cancels", "task", "when", "work")

    def __init__(self, task: asyncio.Task[Any], work: Any, when: float) -> None:
        """Take the task, what it awaits, and the time of its loop at which that is late."""
        self.task = task
        self.work = work
        self.when = when
        self.cancels = 0
        self.before = task.cancelling()

    @property
    def is_past(self) -> bool:
        """Whether the call was cancelled for being late."""
        return self.cancels > 0

    def settle(self) -> bool:
        """Take the cancellations back that were the deadline's; tell whether somebody else wants the task cancelled."""
        while self.cancels and self.task.cancelling() > self.before:
            self.task.uncancel()
            self.cancels -= 1
        return self.task.cancelling() > self.before

    def expire(self) -> None:
        """Cancel the call; the second time, end it."""
        if self.cancels and hasattr(self.work, "abandon"):
            self.work.abandon()
        self.cancels += 1
        self.task.cancel()


class Deadlines:
    """The deadlines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with none."""
        self._loop = loop
        self._due = hidden(self._fire)
        self._pending: dict[int, Deadline] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next = float("inf")

    def add(self, task: asyncio.Task[Any], work: Any, seconds: float) -> Deadline:
        """Have a call cancelled that takes longer."""
        deadline = Deadline(task, work, self._loop.time() + seconds)
        self._pending[id(deadline)] = deadline
        if deadline.when < self._next:
            self._arm(deadline.when)
        return deadline

    def drop(self, deadline: Deadline) -> None:
        """Forget a call that has ended."""
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
    """Return those of the running loop."""
    found: Deadlines = _of(asyncio.get_running_loop())
    return found


def _keep() -> Door:
    """Return what finds the deadlines of a loop. In a variable of this module guarded code could put its own off."""
    loops: WeakKeyDictionary[asyncio.AbstractEventLoop, Deadlines] = WeakKeyDictionary()

    def find(loop: asyncio.AbstractEventLoop) -> Deadlines:
        found = loops.get(loop)
        if found is None:
            found = loops[loop] = Deadlines(loop)
        return found

    return hidden(find)


_of = _keep()
