"""Calls of modules as the caller: renders, actions, commands and tasks; and the state of tasks."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Query, Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from democrai_sandbox.console.auth import Visitor, holder, sandbox_of
from democrai_sandbox.console.problems import status_of
from democrai_sandbox.console.render import PlainResponse, jsonable, weight
from democrai_sandbox.errors import ExtensionFailed, SandboxError, TaskUnknown
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.runtime.store.values import TaskFilter, TaskState

from .openapi import ApiAnswer, ApiInput, Data, Id, ListPage, Paging, Text, operation, router

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from democrai_sandbox.runtime.store import Task

modules = router("modules")
Runner = Annotated[Visitor, Depends(holder(Scope.MODULES_RUN))]
Name = Annotated[str, Path(min_length=1, max_length=200)]
LARGEST_RESULT = 16 * 1024 * 1024
"""Maximum size of a result, which is held in memory several times."""


class ModuleCall(ApiInput):
    """Arguments of a call."""

    params: dict[str, Any] = Field(default={}, description="Arguments by name.")


class TaskCall(ModuleCall):
    """Arguments of a task."""

    timeout_seconds: float | None = Field(default=None, gt=0, description="At most the timeout of the task.")


# For HTTP requests without a body: a call without arguments.
_NO_PARAMS, _NO_TASK_PARAMS = ModuleCall(), TaskCall()


class CallResult(ApiAnswer):
    """Result of a call."""

    result: Data


_CALLS = operation(Scope.MODULES_RUN, 404, 409, 502, 504, body=True) | {"response_model": CallResult}


class StartedTask(ApiAnswer):
    """A queued task; `/tasks/{task_id}` shows its state."""

    id: str


@modules.post("/modules/{module}/render", **_CALLS)
async def render_module(request: Request, module: Name, visitor: Runner, call: ModuleCall = _NO_PARAMS) -> Response:
    """Return the page of a module for the caller."""
    return await _result(sandbox_of(request).runtime.modules.render(module, call.params, visitor.caller))


@modules.post("/modules/{module}/actions/{action}", **_CALLS)
async def run_action(
    request: Request, module: Name, action: Name, visitor: Runner, call: ModuleCall = _NO_PARAMS
) -> Response:
    """Run an action of a module. A denial is a 403 with the target, the fix and the pending request."""
    return await _result(sandbox_of(request).runtime.modules.action(module, action, call.params, visitor.caller))


@modules.post("/modules/{module}/commands/{command}", **_CALLS)
async def run_command(
    request: Request, module: Name, command: Name, visitor: Runner, call: ModuleCall = _NO_PARAMS
) -> Response:
    """Run a command of a module."""
    return await _result(sandbox_of(request).runtime.modules.command(module, command, call.params, visitor.caller))


@modules.post(
    "/modules/{module}/tasks/{task}", status_code=202, **operation(Scope.MODULES_RUN, 404, 409, 429, body=True)
)
async def start_task(
    request: Request, module: Name, task: Name, visitor: Runner, call: TaskCall = _NO_TASK_PARAMS
) -> StartedTask:
    """Start a task of a module for the caller, without waiting for it."""
    runtime = sandbox_of(request).runtime
    await runtime.modules.started(module)
    runtime.modules.loaded(module).surface("task", task)  # raises an error for a broken module or an unknown task
    number = await runtime.tasks.submit(module, task, call.params, visitor.caller, timeout=call.timeout_seconds)
    return StartedTask(id=number)


async def _result(work: Awaitable[Any]) -> Response:
    """Wait for a module. An error of a service that it used, such as an MCP server, counts as its failure."""
    try:
        value = await work
    except SandboxError as error:
        if status_of(error) is not None:
            raise
        raise ExtensionFailed(str(error), kind=error.code) from error
    return await run_in_threadpool(_answer, value)  # not on the event loop, which it would block


def _answer(value: Any) -> Response:
    if weight(value) > LARGEST_RESULT:
        raise ExtensionFailed(f"the result is larger than {LARGEST_RESULT:,} characters", kind="TooLarge")
    return PlainResponse({"result": jsonable(value)})


tasks = router("tasks")
Reader = Annotated[Visitor, Depends(holder(Scope.TASKS_READ))]


class TaskQuery(Paging):
    """Filters of tasks."""

    module: str = Field(default="", max_length=200)
    name: str = Field(default="", max_length=200)
    user: str = Field(default="", max_length=500)
    state: list[TaskState] = Field(default=[], description="May be repeated.")
    scheduled: bool | None = None


class TaskUser(ApiAnswer):
    """User of the task; empty for a scheduled task."""

    user_id: Text
    organization_id: Text
    session_key: Text
    scheduled: bool


class TaskProgress(ApiAnswer):
    """Last progress report of the task."""

    fraction: float | None
    message: Text


class TaskFailure(ApiAnswer):
    """Reason of a failure; `denial` is the code of a denial, if any."""

    type: Text
    message: Text
    traceback: Text
    denial: Text


class TaskRecord(ApiAnswer):
    """A task."""

    id: str
    module: Text
    name: Text
    origin: TaskUser
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


class Cancelled(ApiAnswer):
    """Whether a running or queued task was canceled."""

    cancelled: bool


@tasks.get("/tasks", **operation(Scope.TASKS_READ, query=True))
def list_tasks(request: Request, query: Annotated[TaskQuery, Query()], visitor: Reader) -> ListPage[TaskRecord]:
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
    return ListPage[TaskRecord](items=[TaskRecord.model_validate(task) for task in found], next=following)


@tasks.get("/tasks/{task_id}", **operation(Scope.TASKS_READ, 404))
def show_task(request: Request, task_id: Id, visitor: Reader) -> TaskRecord:
    """Show a task: its progress, result or failure."""
    return TaskRecord.model_validate(_check(sandbox_of(request).runtime.store.task(task_id), visitor))


@tasks.post("/tasks/{task_id}/cancel", **operation(Scope.TASKS_CANCEL, 404))
async def cancel_task(
    request: Request, task_id: Id, visitor: Annotated[Visitor, Depends(holder(Scope.TASKS_CANCEL))]
) -> Cancelled:
    """Cancel a task on any node."""
    runtime = sandbox_of(request).runtime
    _check(await runtime.tasks.status(task_id), visitor)
    return Cancelled(cancelled=await runtime.tasks.cancel(task_id, f"canceled by {visitor.caller.user_id}"))


def _check(task: Task, visitor: Visitor) -> Task:
    """Return a task that the caller may see; a task of another user looks like a missing one."""
    if visitor.may_decide or (task.origin.user_id and task.origin.user_id == visitor.caller.user_id):
        return task
    raise TaskUnknown(f"unknown task {task.id}")
