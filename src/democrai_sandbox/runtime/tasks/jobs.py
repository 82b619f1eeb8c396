"""Tasks of this process: queued in order of arrival, and running, with limits per module."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import TaskQueueFull
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.store import NewTask, Progress, TaskOrigin

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from democrai_sandbox.access.identity import Caller

    from .settings import TaskSettings


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
    is_unsaid: bool = False
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
        origin = TaskOrigin(self.caller.user_id, self.caller.organization_id, self.caller.session_key, self.scheduled)
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

    def module_of(self, task_id: str) -> str:
        """Return the module of a queued or running task; empty for any other."""
        job = self._known.get(task_id)
        return "" if job is None else job.module

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
