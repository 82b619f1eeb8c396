"""One call into an extension: under its guard, on behalf of a caller, with a deadline, with plain data in and out.

If the code of a late call swallows its cancellation, its coroutine is abandoned after a grace period.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from democrai_sandbox.errors import CallTimeout, InvalidInputError
from democrai_sandbox.guard import _core, plain
from democrai_sandbox.runtime.sdk_services import hidden

from .deadline_timer import DeadlineTimer
from .outcome import capture, capture_async, release

if TYPE_CHECKING:
    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.guard import Door, Guard
    from democrai_sandbox.runtime.extensions.importer import Surface

    from .threads import SubjectThreads

GRACE_SECONDS = 1.0


class CallDeadline:
    """Deadline of one call that a task awaits."""

    __slots__ = ("before", "cancels", "deadline", "task", "work")

    def __init__(self, task: asyncio.Task[Any], work: Any, deadline: float) -> None:
        """Take the task, the work it awaits, and the loop time of the deadline."""
        self.task = task
        self.work = work
        self.deadline = deadline
        self.cancels = 0
        """How often the deadline has canceled the call."""
        self.before = task.cancelling()

    def settle(self) -> bool:
        """Undo the deadline's cancellations; return whether other code also canceled the task."""
        while self.cancels and self.task.cancelling() > self.before:
            self.task.uncancel()
            self.cancels -= 1
        return self.task.cancelling() > self.before

    def expire(self, now: float) -> None:
        """Cancel the call; on the second expiry, abandon it."""
        if self.cancels and hasattr(self.work, "abandon"):
            self.work.abandon()
        self.cancels += 1
        self.task.cancel()
        self.deadline = now + GRACE_SECONDS


class CallDeadlines:
    """Deadlines of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, CallDeadline] = {}
        self._timer = DeadlineTimer(loop, self._pending, CallDeadline.expire, wrap=hidden)

    def add(self, task: asyncio.Task[Any], work: Any, seconds: float) -> CallDeadline:
        """Cancel a call that takes longer than ``seconds``."""
        deadline = CallDeadline(task, work, self._loop.time() + seconds)
        self._pending[id(deadline)] = deadline
        self._timer.watch(deadline.deadline)
        return deadline

    def drop(self, deadline: CallDeadline) -> None:
        """Remove the deadline of a finished call."""
        del self._pending[id(deadline)]


def deadlines() -> CallDeadlines:
    """Return the deadlines of the running loop."""
    found: CallDeadlines = _of(asyncio.get_running_loop())
    return found


def _keep() -> Door:
    """Return a lookup of deadlines by loop. A module variable would let guarded code postpone its deadlines."""
    loops: WeakKeyDictionary[asyncio.AbstractEventLoop, CallDeadlines] = WeakKeyDictionary()

    def find(loop: asyncio.AbstractEventLoop) -> CallDeadlines:
        found = loops.get(loop)
        if found is None:
            found = loops[loop] = CallDeadlines(loop)
        return found

    return hidden(find)


_of = _keep()


async def run_surface(
    surface: Surface, params: dict[str, Any], *, guard: Guard, caller: Caller, threads: SubjectThreads, seconds: float
) -> Any:
    """Return the result of an extension's function as plain data, or raise its error.

    The calling task steps the coroutine of an async function, because a separate task would cost several times as much
    as the guard. The coroutine still has a separate Context and cannot run past its timeout: see ``deadlines``.
    """
    token = _core.serve(caller)
    try:
        if surface.is_async:
            steps: Any = guard.run(capture_async, surface.function, **params)
            work: Any = steps.isolated()
        else:
            work = threads.submit(_in_thread, guard, caller, surface.function, params)
        outcome = await bounded(work, seconds, surface)
    finally:
        _core.unserve(token)
    return release(outcome)


def check_params(params: object) -> dict[str, Any]:
    """Return parameters for a function; refuse anything but a dict of plain data."""
    if type(params) is not dict:
        raise InvalidInputError.of(f"expected an object, got {type(params).__name__}", pointer="/params")
    given: dict[str, Any] = plain(params)
    return given


async def bounded(work: Any, seconds: float, surface: Surface) -> Any:
    """Await guarded work for at most ``seconds``; re-raise a cancellation that the guarded code swallowed."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("call extensions from an asyncio task")
    pending = deadlines()
    deadline = pending.add(task, work, seconds)
    try:
        outcome = await work
    except asyncio.CancelledError:
        if not deadline.cancels or deadline.settle():
            raise
        raise CallTimeout(f"{surface.kind} {surface.name} did not finish within {seconds:g} s") from None
    finally:
        pending.drop(deadline)
    if task.cancelling() > deadline.before and deadline.settle():
        raise asyncio.CancelledError
    return outcome


def _in_thread(guard: Guard, caller: Caller, function: Any, params: dict[str, Any]) -> Any:
    token = _core.serve(caller)
    try:
        return guard.run(capture, function, **params)
    finally:
        _core.unserve(token)
