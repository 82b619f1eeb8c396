"""Service behind ``sdk.tasks``: modules start, read and cancel their own tasks only."""

from __future__ import annotations

from contextvars import Context
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.errors import InvalidInputError, TamperDenied, TaskUnknown
from democrai_sandbox.guard import served
from democrai_sandbox.policy import SubjectKind
from democrai_sandbox.runtime.children.path_rights import denied
from democrai_sandbox.runtime.store.values import progress_to_json

from .access_environment import caller_of
from .sdk_services import SdkFutures
from .store import Progress, Task, TaskFilter, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.guard.interface import RawView

    from .task_runtime import TaskRuntime

_EXACT = 1
_PATIENCE = 30.0


class TaskService:
    """Answers guarded code: on the host's loop with a future, on any other thread after waiting."""

    def __init__(self, runtime: TaskRuntime) -> None:
        """Use this task runtime."""
        self._runtime = runtime
        self.promises = SdkFutures("tasks", patience=_PATIENCE)
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
            return caller.task_id if self._runtime.jobs.module_of(caller.task_id) == module else ""
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
    tasks, which have all rights of the module.
    """
    if view is None:
        raise InvalidInputError.of("only modules can use this service: the host uses its task runtime directly")
    for kind, name, _, mode in reversed(view.links):
        if kind == SubjectKind.MODULE:
            return name
        if mode == _EXACT:
            break
    raise denied(TamperDenied, view, service)
