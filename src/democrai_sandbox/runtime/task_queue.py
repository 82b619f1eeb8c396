"""Tasks of this process: queued and running with limits per module, ended with a recorded result."""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.values import new_id
from democrai_sandbox.errors import ExtensionFailed, ExtensionUnknown, InvalidInputError, SandboxDenied, TaskQueueFull
from democrai_sandbox.policy import SandboxError, Subject, SubjectKind, hint_for
from democrai_sandbox.runtime.calls.invocation import require_object
from democrai_sandbox.runtime.store.task_rows import LONGEST_PERIOD, SHORTEST_PERIOD
from democrai_sandbox.runtime.store.values import checked_name

from .store import Failure, NewTask, Progress, TaskCaller, TaskState

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSettings:
    """Limits and times, in seconds unless noted."""

    per_module: int = 4
    """Maximum running tasks of one module."""
    in_all: int = 16
    queued_per_module: int = 100
    """Maximum queued tasks of one module; further ones are refused."""
    timeout: float = 3600.0
    """Default timeout of a task."""
    longest_timeout: float = 86_400.0
    heartbeat: float = 5.0
    silent_after: float = 30.0
    """A node without a heartbeat for this long is considered dead, and its tasks are lost."""
    patience: float = 5.0
    """Time for a canceled task to stop."""
    progress_every: float = 0.5
    """Minimum interval between stored progress reports of a task."""
    keep: timedelta = timedelta(days=30)
    """Retention of the records of ended tasks."""


def subject_of(module: str, name: str) -> Subject:
    """Return the subject of a task for call chains; refuse an invalid name."""
    return Subject(SubjectKind.TASK, f"{module}.{name}")


@dataclass(eq=False, slots=True)
class Job:
    """A task of this process."""

    id: str
    module: str
    name: str
    params: dict[str, Any]
    caller: Caller
    timeout: float
    scheduled: bool = False
    progress: Progress = Progress()  # noqa: RUF009 - an immutable tuple
    is_unreported: bool = False
    """Whether the progress is not stored yet."""
    inner: asyncio.Task[Any] | None = None
    given_up: asyncio.Event | None = None
    reason: str = ""
    """Reason for its cancellation; empty while none is requested."""

    @property
    def ancestors(self) -> tuple[Subject, ...]:
        """Call chain above the module, which names the task in which the module acts."""
        return (subject_of(self.module, self.name),)

    def record(self, node: str) -> NewTask:
        """Return the initial record for the store."""
        origin = TaskCaller(self.caller.user_id, self.caller.organization_id, self.caller.session_key, self.scheduled)
        return NewTask(self.id, self.module, self.name, node, self.params, origin)


class Jobs:
    """All tasks of this process. Used on one loop only."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._waiting: dict[str, deque[Job]] = {}
        self._reserved: Counter[str] = Counter()
        self._running: Counter[str] = Counter()
        self._known: dict[str, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        """Yield queued and running tasks."""
        return iter(tuple(self._known.values()))

    def __len__(self) -> int:
        """Return the number of queued and running tasks."""
        return len(self._known)

    def get(self, task_id: str) -> Job | None:
        """Return a queued or running task of this process."""
        return self._known.get(task_id)

    def only_running(self, label: str) -> str:
        """Return the id of the only running task with a label like ``task:demo.nightly``; empty otherwise."""
        found = [job.id for job in self if job.inner is not None and str(job.ancestors[0]) == label]
        return found[0] if len(found) == 1 else ""

    def reserve(self, module: str) -> None:
        """Reserve a queue slot for a task that is about to be recorded, or refuse it."""
        if not self.has_room(module):
            raise TaskQueueFull(
                f"module {module} already has {self._settings.queued_per_module} queued tasks; try again later"
            )
        self._reserved[module] += 1

    def has_room(self, module: str) -> bool:
        """Return whether the queue of a module has a free slot."""
        waiting = len(self._waiting.get(module, ())) + self._reserved[module]
        return waiting < self._settings.queued_per_module

    def release(self, module: str) -> None:
        """Release a reserved slot."""
        self._reserved[module] -= 1

    def add(self, job: Job) -> None:
        """Queue a recorded task."""
        self._known[job.id] = job
        self._waiting.setdefault(job.module, deque()).append(job)

    def next(self) -> Job | None:
        """Return the next task that may run, or None; modules take turns."""
        if sum(self._running.values()) >= self._settings.in_all:
            return None
        for module in list(self._waiting):
            if self._running[module] < self._settings.per_module:
                queue = self._waiting.pop(module)
                job = queue.popleft()
                if queue:
                    self._waiting[module] = queue  # behind the other modules now
                self._running[module] += 1
                return job
        return None

    def withdraw(self, job: Job) -> bool:
        """Remove a task from the queue; False if it runs."""
        queue = self._waiting.get(job.module)
        if queue is None or job not in queue:
            return False
        queue.remove(job)
        if not queue:
            del self._waiting[job.module]
        del self._known[job.id]
        return True

    def done(self, job: Job) -> None:
        """Remove a task that ran."""
        self._known.pop(job.id, None)
        self._running[job.module] -= 1
        if not self._running[job.module]:
            del self._running[job.module]


class DeclaredTasks:
    """Declared tasks with their timeouts."""

    def __init__(self, settings: TaskSettings) -> None:
        self._settings = settings
        self._timeouts: dict[tuple[str, str], float | None] = {}

    def add(self, module: str, name: str, timeout: float | None) -> None:
        """Register a task; None for the default timeout."""
        self._check_timeout(timeout)
        subject_of(module, checked_name(name, "/name"))
        self._timeouts[module, name] = timeout

    def remove(self, module: str) -> None:
        """Remove all tasks of a module."""
        self._timeouts = {key: value for key, value in self._timeouts.items() if key[0] != module}

    def job(
        self,
        module: str,
        name: str,
        params: object,
        caller: Caller,
        *,
        timeout: float | None = None,
        task_id: str = "",
        scheduled: bool = False,
    ) -> Job:
        """Return a task that can run, or refuse the arguments."""
        given = require_object(params, "/params")
        if (module, name) not in self._timeouts:
            hint = hint_for(name, [other for of, other in self._timeouts if of == module])
            raise ExtensionUnknown(f"module {module} has no task {name!r}{hint}")
        self._check_timeout(timeout)
        seconds = timeout or self._timeouts[module, name] or self._settings.timeout
        task_id = task_id or new_id()
        # Without role and access level: a task keeps user, organization and session, but cannot decide requests.
        serving = Caller(caller.user_id, caller.organization_id, caller.session_key, task_id=task_id)
        return Job(task_id, module, name, given, serving, seconds, scheduled)

    def _check_timeout(self, timeout: float | None) -> None:
        longest = self._settings.longest_timeout
        if timeout is not None and (type(timeout) not in (int, float) or not 0 < timeout <= longest):
            raise InvalidInputError.of(f"expected a number greater than 0 and at most {longest:g}", pointer="/timeout")


def period(every: float) -> timedelta:
    """Return the period of a schedule, or refuse it."""
    try:
        found = timedelta(seconds=every) if type(every) in (int, float) else timedelta(0)
    except (OverflowError, ValueError):
        found = timedelta(0)
    if not SHORTEST_PERIOD <= found <= LONGEST_PERIOD:
        raise InvalidInputError.of(
            f"expected a period in seconds, from {SHORTEST_PERIOD} to {LONGEST_PERIOD}", pointer="/every"
        )
    return found


_log = logging.getLogger(__name__)


class Ending(NamedTuple):
    """Final state, with the result or the failure."""

    state: TaskState
    result: Any = None
    failure: Failure | None = None


def ending_of(job: Job, work: asyncio.Task[Any]) -> Ending:
    """Return the end of a task's call. Denials, failures of the task and failures of the runtime are distinguished."""
    if not work.done():
        return cancelled(f"{job.reason}; it did not stop and was abandoned")
    if work.cancelled():
        return cancelled(job.reason or "it canceled itself")
    error = work.exception()
    if error is None:
        return Ending(TaskState.DONE, work.result())
    return failed(error)


def cancelled(reason: str) -> Ending:
    """Return the end of a canceled task."""
    return Ending(TaskState.CANCELLED, failure=Failure("Cancelled", reason))


def failed(error: BaseException) -> Ending:
    """Return the end of a task that raised an error."""
    return Ending(TaskState.FAILED, failure=_failure(error))


def _failure(error: BaseException) -> Failure:
    name = type(error).__name__
    if isinstance(error, SandboxDenied):
        return Failure(name, str(error), error.diagnostics(), error.code)
    if isinstance(error, ExtensionFailed):
        return Failure(error.kind or name, error.message, error.traceback)
    if isinstance(error, SandboxError):
        return Failure(name, str(error), error.diagnostics())
    _log.error("a task failed in the runtime", exc_info=error)
    return Failure("RuntimeServiceFailed", "the task failed in the runtime; the log has the details")
