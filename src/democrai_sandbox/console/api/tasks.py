"""Tasks of modules: the caller's own, or all for users who may decide."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - FastAPI reads the annotations
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Query, Request
from pydantic import Field

from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.errors import TaskUnknown
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.runtime.store.values import TaskFilter, TaskState

from . import schemas
from .documenting import router, told
from .schemas import Answer, Data, Id, Paging, Text

if TYPE_CHECKING:
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.runtime.store import Task

tasks = router("tasks")
Reader = Annotated[Visitor, Depends(holder(Scope.TASKS_READ))]


class TaskQuery(Paging):
    """Filters of tasks."""

    module: str = Field(default="", max_length=200)
    name: str = Field(default="", max_length=200)
    user: str = Field(default="", max_length=500)
    state: list[TaskState] = Field(default=[], description="May be repeated.")
    scheduled: bool | None = None


class TaskOrigin(Answer):
    """User of the task; empty for a scheduled task."""

    user_id: Text
    organization_id: Text
    session_key: Text
    scheduled: bool


class TaskProgress(Answer):
    """Last progress report of the task."""

    fraction: float | None
    message: Text


class TaskFailure(Answer):
    """Reason of a failure; `denial` is the code of a denial, if any."""

    type: Text
    message: Text
    traceback: Text
    denial: Text


class TaskRecord(Answer):
    """A task."""

    id: str
    module: Text
    name: Text
    origin: TaskOrigin
    state: TaskState
    params: Data
    progress: TaskProgress
    result: Data
    failure: TaskFailure | None
    node: Text
    attempt: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Cancelled(Answer):
    """Whether a running or queued task was canceled."""

    cancelled: bool


@tasks.get("/tasks", **told(Scope.TASKS_READ, query=True))
def list_tasks(request: Request, query: Annotated[TaskQuery, Query()], visitor: Reader) -> schemas.Page[TaskRecord]:
    """List tasks, newest first; users other than administrators see their own."""
    store = sandbox_of(request).runtime.store
    wanted = TaskFilter(
        module=query.module,
        name=query.name,
        user_id=query.user if visitor.may_decide else visitor.caller.user_id,
        states=tuple(query.state),
        scheduled=query.scheduled,
    )
    found = store.tasks(wanted, limit=query.limit, before=query.after)
    last = found[-1].id if len(found) == query.limit else ""
    following = last if last and store.tasks(wanted, limit=1, before=last) else ""
    return schemas.Page[TaskRecord](items=[TaskRecord.model_validate(task) for task in found], next=following)


@tasks.get("/tasks/{task_id}", **told(Scope.TASKS_READ, 404))
def show_task(request: Request, task_id: Id, visitor: Reader) -> TaskRecord:
    """Show a task: its progress, result or failure."""
    return TaskRecord.model_validate(_seen(sandbox_of(request), task_id, visitor))


@tasks.post("/tasks/{task_id}/cancel", **told(Scope.TASKS_CANCEL, 404))
async def cancel_task(
    request: Request, task_id: Id, visitor: Annotated[Visitor, Depends(holder(Scope.TASKS_CANCEL))]
) -> Cancelled:
    """Cancel a task on any node."""
    runtime = sandbox_of(request).runtime
    _check(await runtime.tasks.status(task_id), visitor)
    return Cancelled(cancelled=await runtime.tasks.cancel(task_id, f"canceled by {visitor.caller.user_id}"))


def _seen(sandbox: Sandbox, task_id: str, visitor: Visitor) -> Task:
    return _check(sandbox.runtime.store.task(task_id), visitor)


def _check(task: Task, visitor: Visitor) -> Task:
    """Return a task that the caller may see; a task of another user looks like a missing one."""
    if visitor.may_decide or (task.origin.user_id and task.origin.user_id == visitor.caller.user_id):
        return task
    raise TaskUnknown(f"unknown task {task.id}")
