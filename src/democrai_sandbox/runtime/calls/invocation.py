"""Calls into extensions: their guards, threads and deadlines, and one call with plain data in and out."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from democrai_sandbox.errors import CallTimeout
from democrai_sandbox.errors.services import RunStopped
from democrai_sandbox.guard import Door, Guard, _core, plain, policy_of
from democrai_sandbox.policy import InvalidInputError, Subject, SubjectChain
from democrai_sandbox.runtime.sdk_services import hidden

from .outcome import capture, capture_async, release

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.guard._core import Policy
    from democrai_sandbox.manifests import ModuleManifest, Section
    from democrai_sandbox.policy.subjects import CallIdentity
    from democrai_sandbox.runtime.extensions.importer import Surface


class HasDeadline(Protocol):
    """A pending call."""

    deadline: float
    """Loop time at which it expires; infinite for none."""


Pending = TypeVar("Pending", bound=HasDeadline)


class DeadlineTimer(Generic[Pending]):
    """Calls a function for each pending call whose deadline has passed; the function sets its next deadline.

    It is one timer for the deadlines of many calls: a timer per call would cost more than the rest of a call.
    """

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


_IS_EXACT = False
"""The guards merge with those of their callers."""


class GuardFactory:
    """A subject with its compiled policy for one phase: compiled once, entered for every call."""

    def __init__(
        self,
        subject: Subject,
        section: Section | ModuleManifest,
        *,
        own_read: tuple[str, ...] = (),
        own_write: tuple[str, ...] = (),
        ancestors: SubjectChain = (),
    ) -> None:
        """Compile the declarations of a phase and the folders that the runtime gives to this subject.

        ``ancestors`` is the call chain that the subject continues, for a task or a call from another process.
        """
        self.subject = subject
        self._section = section
        self._given: dict[str, Any] = {"own_read": own_read, "own_write": own_write}
        self._policy = self._compiled(section, ancestors)

    def held_against(self, section: Section | ModuleManifest | None) -> None:
        """Compare every check of this subject with a candidate's declarations; None ends the comparison.

        The current policy still decides. The guard reports differences to its watcher.
        """
        _core.candidate(str(self.subject), None if section is None else self._compiled(section, ()))

    def below(self, ancestors: SubjectChain, subject: Subject | None = None) -> GuardFactory:
        """Return the same subject, or another with its rights, with the call chain ``ancestors`` above it."""
        return GuardFactory(subject or self.subject, self._section, ancestors=ancestors, **self._given)

    def _compiled(self, section: Section | ModuleManifest, ancestors: SubjectChain) -> Policy:
        return policy_of(
            subject=self.subject.name,
            subject_kind=self.subject.kind.value,
            access=section.access,
            allowed_imports=section.allowed_imports,
            ancestors=ancestors,
            **self._given,
        )

    def guard(self, caller: CallIdentity) -> Guard:
        """Return a guard for one call by ``caller``."""
        return _core.guard(self._policy, caller[0] or None, caller[1] or None, caller[2] or None, _IS_EXACT)


_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", "Callable[..., Any]", tuple[Any, ...]]


class SubjectThreads:
    """A bounded number of threads that take jobs of one subject from one queue, started on demand.

    The threads belong to the host and are unguarded; each job enters its guard. They are daemons, because the process
    must not wait at exit for a call that never returns.
    """

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0
        # Threads can be listed with their functions; access to the queue would let guarded code add jobs.
        self._serve = hidden(self._work)

    def submit(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread and return its future on the running loop. It can be abandoned, not stopped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle <= 0 and self._started < self._most:
                self._started += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()
            else:
                self._idle -= 1
        self._jobs.put((loop, future, function, args))
        return future

    def stop(self) -> None:
        """Stop idle threads; a busy thread stops after its job."""
        with self._lock:
            for _ in range(self._started):
                self._jobs.put(None)
            self._started = self._most

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            run_job(*job, self._end)
            del job

    def _end(self) -> None:
        with self._lock:
            self._idle += 1


def run_job(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    end: Callable[[], object],
) -> None:
    """Run a function in this thread, call ``end``, and settle the future on its loop."""
    try:
        outcome, error = function(*args), None
    except BaseException as raised:  # noqa: BLE001 - the waiting caller gets it
        outcome, error = None, raised
    end()
    with suppress(RuntimeError):  # the loop is closed, so no caller waits
        loop.call_soon_threadsafe(_settle, future, outcome, error)
    # The traceback of the error references this frame.
    del future, function, args, outcome, error


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    elif isinstance(error, StopIteration):  # a future refuses it
        future.set_exception(RuntimeError("the function raised StopIteration"))
    else:
        future.set_exception(error)


_MOST_AT_ONCE = 32


class CallThreads:
    """Threads of one function, one for each blocking call.

    In a shared pool, a few tools that never return would block all others.
    """

    def __init__(self) -> None:
        self._free = threading.Semaphore(_MOST_AT_ONCE)

    async def run(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Return the result of the function. After a cancellation the thread continues, and its result is dropped."""
        if not self._free.acquire(blocking=False):
            raise RunStopped("too many concurrent calls have not returned")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        try:
            job = (run_job, loop, future, function, args, self._free.release)
            threading.Thread(target=context.run, args=job, daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        try:
            return await future
        finally:
            # The traceback of an exception references this frame: without the deletion it would keep itself and its
            # guard alive.
            del future, job


GRACE_SECONDS = 1.0


@dataclass(eq=False, slots=True)
class CallDeadline:
    """Deadline of one call that a task awaits."""

    task: asyncio.Task[Any]
    work: Any
    deadline: float
    before: int
    """How often the task was canceled before the call."""
    cancels: int = 0
    """How often the deadline has canceled the call."""

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
        deadline = CallDeadline(task, work, self._loop.time() + seconds, task.cancelling())
        self._pending[id(deadline)] = deadline
        self._timer.watch(deadline.deadline)
        return deadline

    def drop(self, deadline: CallDeadline) -> None:
        """Remove the deadline of a finished call."""
        del self._pending[id(deadline)]


def _keep() -> Door:
    """Return a lookup of deadlines by loop. A module variable would let guarded code postpone its deadlines."""
    loops: WeakKeyDictionary[asyncio.AbstractEventLoop, CallDeadlines] = WeakKeyDictionary()

    def find() -> CallDeadlines:
        loop = asyncio.get_running_loop()
        found = loops.get(loop)
        if found is None:
            found = loops[loop] = CallDeadlines(loop)
        return found

    return hidden(find)


deadlines = _keep()
"""Returns the deadlines of the running loop."""


async def run_surface(
    surface: Surface, params: dict[str, Any], *, guard: Guard, caller: Caller, threads: SubjectThreads, seconds: float
) -> Any:
    """Return the result of an extension's function as plain data, or raise its error.

    The calling task steps the coroutine of an async function, because a separate task would cost several times as much
    as the guard. The coroutine still has a separate Context and cannot run past its timeout: see ``deadlines``.

    Each call runs under its guard, on behalf of a caller. If the code of a late call swallows its cancellation, its
    coroutine is abandoned after a grace period.
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
    given: dict[str, Any] = plain(require_object(params, "/params"))
    return given


def require_object(value: object, pointer: str) -> dict[str, Any]:
    """Return a dict, or refuse any other value."""
    if type(value) is not dict:
        raise InvalidInputError.of(f"expected an object, got {type(value).__name__}", pointer=pointer)
    return value


async def bounded(work: Any, seconds: float, surface: Surface) -> Any:
    """Await guarded work for at most ``seconds``; re-raise a cancellation that the guarded code swallowed."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("call extensions from an asyncio task")
    pending: CallDeadlines = deadlines()
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
