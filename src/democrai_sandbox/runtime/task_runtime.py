"""Task runtime: tasks are recorded before they run, run within limits, and their end is always recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.node import utc_now
from democrai_sandbox.errors import InvalidInputError, RuntimeServiceFailed, StoreUnavailable, TamperDenied, TaskUnknown
from democrai_sandbox.guard import served
from democrai_sandbox.policy import SubjectKind
from democrai_sandbox.runtime.calls.invocation import SubjectThreads
from democrai_sandbox.runtime.children.path_rights import denied
from democrai_sandbox.runtime.store.values import progress_to_json

from .access_environment import caller_of
from .sdk_services import SdkFutures, hidden
from .store import Failure, Progress, RuntimeStore, Task, TaskFilter, TaskState
from .task_queue import DeclaredTasks, Ending, Job, Jobs, TaskSettings, cancelled, ending_of, failed, period

if TYPE_CHECKING:
    from democrai_sandbox.guard.interface import RawView


SurfaceRunner = Callable[..., Coroutine[Any, Any, Any]]
"""Calls a function of a module under the guard of the module, like ``ModuleRuntime.call``."""
T = TypeVar("T")

_log = logging.getLogger(__name__)
_LONGEST_PAUSE = 5.0


_LONGEST_SLEEP = 60.0
_PAUSE = 1.0


@dataclass(eq=False, slots=True)
class ScheduleEntry:
    """A task with its period."""

    module: str
    name: str
    every: timedelta
    due: datetime | None = None
    """None until it was read from the store."""


_HOUR = timedelta(hours=1)


@dataclass(eq=False, repr=False)
class TaskRuntime:
    """Runs the tasks of modules on the loop that starts it."""

    _store: RuntimeStore
    _run_surface: SurfaceRunner
    _: KW_ONLY
    node: str
    """Name of this process among those that share the store."""
    settings: TaskSettings = field(default_factory=TaskSettings)
    started: Callable[[str], Awaitable[None]] | None = None
    """Waits until a module is loaded."""
    loop: asyncio.AbstractEventLoop | None = field(default=None, init=False)
    _progress_timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _pruned: datetime | None = field(default=None, init=False)
    _closing = False

    def __post_init__(self) -> None:
        self._threads = SubjectThreads(1, "runtime-tasks")
        """The thread for the store: operations run one after the other."""
        self.jobs = Jobs(self.settings)
        self._schedule: dict[tuple[str, str], ScheduleEntry] = {}
        self._schedule_changed = asyncio.Event()
        self._declared = DeclaredTasks(self.settings)
        self._working: set[asyncio.Task[Any]] = set()
        self._background: set[asyncio.Task[Any]] = set()
        # The loop exposes its callbacks.
        self._store_progress = hidden(self._store_reports)
        self.note_from_afar = hidden(self.note_progress)
        """``note_progress`` for other threads, which pass it to the loop."""

    async def start(self) -> tuple[str, ...]:
        """Start; mark tasks that were running here or on a dead node as lost, and return their ids."""
        self.loop = asyncio.get_running_loop()
        self._closing = False
        self._threads = SubjectThreads(1, "runtime-tasks")  # a stopped one cannot start again
        lost = await self._stored(
            self._store.mark_lost, silent_since=self._silent_since(), now=utc_now(), node=self.node
        )
        if lost:
            _log.warning("marked tasks of an ended process as lost: %s", ", ".join(lost))
        self._stay(self._keep_alive)
        self._stay(self._run_schedule)
        return lost

    async def stop(self) -> None:
        """Cancel all tasks, and wait until the store has recorded them. May be called repeatedly."""
        if self.loop is None or self._closing:
            return
        self._closing = True
        background = tuple(self._background)
        for task in background:
            task.cancel()
        for job in self.jobs:
            self._end(job, "the runtime was stopped")
        patience = self.settings.patience * 2
        if self._working:
            await asyncio.wait(tuple(self._working), timeout=patience)
        for task in tuple(self._working):
            task.cancel()  # the store is down: the missing heartbeat marks the task as lost
        await asyncio.gather(*background, *self._working, return_exceptions=True)
        self._threads.stop()

    async def submit(
        self,
        module: str,
        name: str,
        params: dict[str, Any],
        caller: Caller,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - the task's, not this call's
    ) -> str:
        """Record a task and run it; return its id. It runs for the caller, and keeps the caller's session."""
        self._check_open()
        if self.started is not None:
            await self.started(module)
        job = self._declared.job(module, name, params, caller, timeout=timeout)
        self.jobs.reserve(module)
        try:
            await self._stored(self._store.add_task, job.record(self.node), now=utc_now())
        finally:
            self.jobs.release(module)
        self._enqueue(job)
        return job.id

    async def retry(self, task_id: str, caller: Caller) -> None:
        """Run a failed, canceled or lost task again, for the caller."""
        self._check_open()
        task = await self.status(task_id)
        if self.started is not None:
            await self.started(task.module)
        job = self._declared.job(task.module, task.name, task.params, caller, task_id=task_id)
        if not await self._stored(self._store.retry_task, task_id, **self._here()):
            raise InvalidInputError.of(
                f"task {task_id} is {task.state}: only failed, cancelled or lost tasks can run again", pointer="/id"
            )
        self._enqueue(job)

    async def cancel(self, task_id: str, reason: str = "it was canceled") -> bool:
        """Cancel a task on any node; False if it has already ended."""
        if not await self._stored(self._store.request_cancel, task_id):
            await self.status(task_id)  # raises TaskUnknown for an unknown id
            return False
        job = self.jobs.get(task_id)
        if job is not None:
            self._end(job, reason)
        return True

    async def status(self, task_id: str) -> Task:
        """Return the record of a task; raises ``TaskUnknown``."""
        return await self._stored(self._store.task, task_id)

    async def tasks(self, wanted: TaskFilter, *, limit: int = 100, before: str = "") -> tuple[Task, ...]:
        """List tasks, the newest first."""
        return await self._stored(self._store.tasks, wanted, limit=limit, before=before)

    def note_progress(self, task_id: str, progress: Progress) -> None:
        """Store the progress of a task. Call it on the loop; reports are written in batches."""
        job = self.jobs.get(task_id)
        if job is None or job.inner is None:
            return
        job.progress, job.is_unreported = progress, True
        if self._progress_timer is None and self.loop is not None:
            self._progress_timer = self.loop.call_later(
                self.settings.progress_every, self._store_progress, context=Context()
            )

    def declare(self, module: str, name: str, *, every: float | None = None, timeout: float | None = None) -> None:
        """Register a task of a module. With ``every`` it also runs periodically, on one node, without a user."""
        entry = None if every is None else ScheduleEntry(module, name, period(every))
        self._declared.add(module, name, timeout)
        if entry is not None:
            self._schedule[module, name] = entry
            self._schedule_changed.set()

    def forget(self, module: str) -> None:
        """Remove the tasks of a module; running ones continue."""
        self._declared.remove(module)
        self._schedule = {key: entry for key, entry in self._schedule.items() if key[0] != module}

    def _enqueue(self, job: Job) -> None:
        self.jobs.add(job)
        if self._closing:
            self._end(job, "the runtime was stopped")
        self._dispatch()

    def _dispatch(self) -> None:
        while not self._closing and (job := self.jobs.next()) is not None:
            self._spawn(self._work(job), self._working)

    async def _work(self, job: Job) -> None:
        try:
            try:
                ending = await self._outcome(job)
            except Exception as error:  # noqa: BLE001 - the record must not stay in the running state
                ending = failed(error)
            await self._record(job, ending)
        finally:
            self.jobs.done(job)
            self._dispatch()

    async def _outcome(self, job: Job) -> Ending:
        if not await self._insist(self._store.start_task, job.id, **self._here()):
            return cancelled(job.reason or "it was canceled before it ran")
        if job.reason:
            return cancelled(job.reason)
        job.given_up = asyncio.Event()
        call = self._run_surface(
            job.module, "task", job.name, job.params, job.caller, seconds=job.timeout, ancestors=job.ancestors
        )
        job.inner = self._spawn(call)
        waiting = self._spawn(job.given_up.wait())
        await asyncio.wait({job.inner, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        return ending_of(job, job.inner)

    async def _record(self, job: Job, ending: Ending) -> None:
        """Record the end; a result that cannot be stored becomes a failure."""
        if job.is_unreported:
            job.is_unreported = False
            await self._insist(self._store.say_progress, job.id, job.progress, **self._here())
        state, result, failure = ending
        try:
            await self._insist(self._store.finish_task, job.id, state, **self._here(), result=result, failure=failure)
        except InvalidInputError as error:
            failure = Failure(type(error).__name__, f"the result cannot be stored: {error}")
            await self._insist(self._store.finish_task, job.id, TaskState.FAILED, **self._here(), failure=failure)

    def _end(self, job: Job, reason: str) -> None:
        """Cancel a task of this process: remove it from the queue, or cancel and if necessary abandon it."""
        if job.reason:
            return
        job.reason = reason
        if self.jobs.withdraw(job):
            self._spawn(self._record(job, cancelled(reason)), self._working)
        elif job.inner is not None and job.given_up is not None and self.loop is not None:
            job.inner.cancel()
            self.loop.call_later(self.settings.patience, job.given_up.set, context=Context())

    def _stay(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run background work and restart it when canceled: guarded code can cancel every task of the loop."""

        def again(ended: asyncio.Task[Any]) -> None:
            self._background.discard(ended)
            if ended.cancelled() and not self._closing:
                self._stay(work)

        task = self._spawn(work())
        self._background.add(task)
        task.add_done_callback(hidden(again))

    async def _keep_alive(self) -> None:
        """Store the heartbeat of this node, handle cancellation requests, and mark tasks of dead nodes as lost."""
        while True:
            await asyncio.sleep(self.settings.heartbeat)
            try:
                canceled = await self._stored(self._store.beat, **self._here()) if len(self.jobs) else ()
                for job in filter(None, map(self.jobs.get, canceled)):
                    self._end(job, "it was canceled")
                await self._stored(self._store.mark_lost, silent_since=self._silent_since(), now=utc_now())
                now = utc_now()
                if self._pruned is None or now - self._pruned >= _HOUR:
                    self._pruned = now
                    await self._stored(self._store.prune_tasks, before=now - self.settings.keep)
            except StoreUnavailable as error:
                _log.warning("the heartbeat of this node could not be stored: %s", error.__cause__ or error)
            except Exception:  # noqa: BLE001 - the heartbeat must continue
                _log.exception("the task heartbeat failed")

    def _store_reports(self) -> None:
        self._progress_timer = None
        for job in self.jobs:
            if job.is_unreported:
                job.is_unreported = False
                self._spawn(self._store_one(job, job.progress))

    async def _store_one(self, job: Job, progress: Progress) -> None:
        with suppress(StoreUnavailable):  # a later report replaces it
            await self._stored(self._store.say_progress, job.id, progress, **self._here())

    async def _run_schedule(self) -> None:
        """Sleep until the next entry is due, and run it."""
        while True:
            pause = await self._run_due_entries()
            self._schedule_changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._schedule_changed.wait(), pause)

    async def _run_due_entries(self) -> float:
        """Run due entries; return the seconds until the next one."""
        for entry in tuple(self._schedule.values()):
            try:
                if entry.due is None:
                    entry.due = await self._stored(
                        self._store.ensure_schedule, entry.module, entry.name, entry.every, now=utc_now()
                    )
                elif entry.due <= utc_now():
                    entry.due = await self._claim(entry, entry.due)
            except StoreUnavailable:
                return _PAUSE
            except Exception:  # noqa: BLE001 - one failing entry must not stop the others
                _log.exception("the schedule of %s.%s failed", entry.module, entry.name)
                entry.due = utc_now() + timedelta(seconds=_PAUSE)
        times = [entry.due for entry in self._schedule.values() if entry.due is not None]
        left = (min(times) - utc_now()).total_seconds() if times else _LONGEST_SLEEP
        return min(max(left, 0.001), _LONGEST_SLEEP)

    async def _claim(self, entry: ScheduleEntry, due: datetime) -> datetime:
        """Try to claim the run of a due entry; leave it to another node if the queue is full."""
        now = utc_now()
        if not self.jobs.has_room(entry.module):
            return now + timedelta(seconds=1)
        job = self._declared.job(entry.module, entry.name, {}, Caller(), scheduled=True)
        got, following = await self._stored(self._store.claim_run, job.record(self.node), due, now=now)
        if got:
            self._enqueue(job)
        return following

    async def _stored(self, act: Callable[..., T], *args: Any, **named: Any) -> T:
        """Return the result of a store operation, or raise its error."""
        result: T = await self._threads.submit(partial(act, *args, **named))
        return result

    async def _insist(self, act: Callable[..., T], *args: Any, **named: Any) -> T:
        """Run an operation, and retry while the store is down, for data that must not be lost."""
        pause = 0.1
        while True:
            try:
                return await self._stored(act, *args, **named)
            except StoreUnavailable as error:
                _log.warning("the store is down; a task waits for it: %s", error.__cause__ or error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _here(self) -> dict[str, Any]:
        return {"node": self.node, "now": utc_now()}

    def _silent_since(self) -> datetime:
        return utc_now() - timedelta(seconds=self.settings.silent_after)

    def _check_open(self) -> None:
        if self.loop is None or self._closing:
            raise RuntimeServiceFailed("tasks are not available: the runtime is not running")

    def _spawn(self, work: Coroutine[Any, Any, Any], kept: set[asyncio.Task[Any]] | None = None) -> asyncio.Task[Any]:
        """Run a coroutine in a new context, because the caller may be guarded and the host's work is not."""
        task = asyncio.get_running_loop().create_task(work, context=Context())
        if kept is not None:
            kept.add(task)
            task.add_done_callback(hidden(kept.discard))
        return task


_EXACT = 1


class TaskService:
    """Answers guarded code: on the host's loop with a future, on any other thread after waiting.

    Behind ``sdk.tasks``, modules start, read and cancel their own tasks only.
    """

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self.promises = SdkFutures("tasks", patience=30.0)
        """Available after it is opened on the host's loop."""

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the services to install."""
        return {
            "tasks.start": self.start,
            "tasks.status": self.status,
            "tasks.list": self.listed,
            "tasks.cancel": self.cancel,
            "tasks.progress": self.progress,
        }

    def start(self, view: RawView | None, name: object, params: object, timeout: object) -> Any:
        """Start a task of the calling module, on behalf of its caller; return its id."""
        module = _module_of(view, "tasks.start")
        if type(name) is not str:
            raise InvalidInputError.of(f"expected a text, got {type(name).__name__}", pointer="/name")
        return self.promises.promise(
            self._runtime.submit(module, name, params, caller_of(view), timeout=timeout)  # type: ignore[arg-type] # checked there
        )

    def status(self, view: RawView | None, task_id: object) -> Any:
        """Return the record of a task of the calling module."""
        return self.promises.promise(self._shown(_module_of(view, "tasks.status"), task_id))

    def listed(self, view: RawView | None, name: object, states: object, limit: object) -> Any:
        """Return the tasks of the calling module, the newest first."""
        return self.promises.promise(self._listed(_module_of(view, "tasks.list"), name, states, limit))

    def cancel(self, view: RawView | None, task_id: object) -> Any:
        """Cancel a task of the calling module; return False if it has already ended."""
        return self.promises.promise(self._cancel(_module_of(view, "tasks.cancel"), task_id))

    def progress(self, view: RawView | None, fraction: object, message: object) -> None:
        """Store the progress of the calling task. Outside a task it has no effect."""
        said = Progress(fraction, message)  # type: ignore[arg-type] # checked by the next line
        progress_to_json(said)
        loop = self._runtime.loop
        if loop is not None and view is not None and (task_id := self._present(view)):
            loop.call_soon_threadsafe(self._runtime.note_from_afar, task_id, said, context=Context())

    def _present(self, view: RawView) -> str:
        """Return the id of the calling task; empty outside a task.

        Guarded code can claim another task of its module, but not one of another module. A caller in a worker is
        identified by its call chain, if only one task with that name is running.
        """
        module = _module_of(view, "tasks.progress")
        caller = served()
        if type(caller) is Caller and caller.task_id:
            job = self._runtime.jobs.get(caller.task_id)
            return caller.task_id if job is not None and job.module == module else ""
        return next((found for label in view.labels if (found := self._runtime.jobs.only_running(label))), "")

    async def _own(self, module: str, task_id: object) -> Task:
        if type(task_id) is not str:
            raise InvalidInputError.of(f"expected a text, got {type(task_id).__name__}", pointer="/id")
        task = await self._runtime.status(task_id)
        if task.module != module:
            raise TaskUnknown(f"unknown task {task_id}")
        return task

    async def _shown(self, module: str, task_id: object) -> dict[str, Any]:
        return shown(await self._own(module, task_id))

    async def _listed(self, module: str, name: object, states: object, limit: object) -> list[dict[str, Any]]:
        if type(name) is not str or type(states) is not list:
            raise InvalidInputError.of("expected a name and a list of states", pointer="/")
        known = tuple(state for state in TaskState if state.value in states)
        if len(known) != len(states):
            raise InvalidInputError.of(f"unknown state; expected some of: {', '.join(TaskState)}", pointer="/states")
        found = await self._runtime.tasks(TaskFilter(module=module, name=name, states=known), limit=limit)  # type: ignore[arg-type] # checked there
        return [shown(task) for task in found]

    async def _cancel(self, module: str, task_id: object) -> bool:
        task = await self._own(module, task_id)
        return await self._runtime.cancel(task.id)


def shown(task: Task) -> dict[str, Any]:
    """Return a task as plain data."""
    failure = task.failure
    return {
        "id": task.id,
        "name": task.name,
        "state": task.state.value,
        "fraction": task.progress.fraction,
        "message": task.progress.message,
        "result": task.result,
        "failure": None if failure is None else dict(failure._asdict()),
        "scheduled": task.origin.scheduled,
        "attempt": task.attempt,
        "created_at": task.created_at.isoformat(),
        "started_at": None if task.started_at is None else task.started_at.isoformat(),
        "finished_at": None if task.finished_at is None else task.finished_at.isoformat(),
    }


def _module_of(view: RawView | None, service: str) -> str:
    """Return the module that a caller works for: the innermost in its call chain.

    A narrowed subject inside the module, such as a tool with its own ``access`` list or an MCP server, cannot start
    tasks, which have all rights of the module. Neither can a shared tool of another module.
    """
    if view is None:
        raise InvalidInputError.of("only modules can use this service: the host uses its task runtime directly")
    owners = {""}
    for kind, name, _, mode in reversed(view.links):
        if kind == SubjectKind.MODULE and owners <= {"", name}:
            return name
        if mode == _EXACT:
            break
        owners.add(name.rpartition(".")[0])
    raise denied(TamperDenied, view, service)
