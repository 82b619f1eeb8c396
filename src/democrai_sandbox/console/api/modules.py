"""Calls of modules: renders, actions, commands and tasks, as the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request
from fastapi.responses import Response  # noqa: TC002 - FastAPI reads the annotations
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from democrai_sandbox.console.plain import PlainResponse, jsonable, weight
from democrai_sandbox.console.problems import status_of
from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.errors import ExtensionFailed, SandboxError
from democrai_sandbox.host.scopes import Scope

from .documenting import router, told
from .schemas import Answer, Data, Order

if TYPE_CHECKING:
    from collections.abc import Awaitable

modules = router("modules")
Runner = Annotated[Visitor, Depends(holder(Scope.MODULES_RUN))]
Name = Annotated[str, Path(min_length=1, max_length=200)]
LARGEST_RESULT = 16 * 1024 * 1024
"""Maximum size of a result, which is held in memory several times."""


class Call(Order):
    """Arguments of a call."""

    params: dict[str, Any] = Field(default={}, description="Arguments by name.")


class TaskCall(Call):
    """Arguments of a task."""

    timeout_seconds: float | None = Field(default=None, gt=0, description="At most the timeout of the task.")


# For HTTP requests without a body: a call without arguments.
_NO_PARAMS, _NO_TASK_PARAMS = Call(), TaskCall()


class Result(Answer):
    """Result of a call."""

    result: Data


_CALLS = told(Scope.MODULES_RUN, 404, 409, 502, 504, body=True) | {"response_model": Result}


class Started(Answer):
    """A queued task; `/tasks/{task_id}` shows its state."""

    id: str


@modules.post("/modules/{module}/render", **_CALLS)
async def render_module(request: Request, module: Name, visitor: Runner, call: Call = _NO_PARAMS) -> Response:
    """Return the page of a module for the caller."""
    return await _result(sandbox_of(request).runtime.modules.render(module, call.params, visitor.caller))


@modules.post("/modules/{module}/actions/{action}", **_CALLS)
async def run_action(
    request: Request, module: Name, action: Name, visitor: Runner, call: Call = _NO_PARAMS
) -> Response:
    """Run an action of a module. A denial is a 403 with the target, the fix and the pending request."""
    return await _result(sandbox_of(request).runtime.modules.action(module, action, call.params, visitor.caller))


@modules.post("/modules/{module}/commands/{command}", **_CALLS)
async def run_command(
    request: Request, module: Name, command: Name, visitor: Runner, call: Call = _NO_PARAMS
) -> Response:
    """Run a command of a module."""
    return await _result(sandbox_of(request).runtime.modules.command(module, command, call.params, visitor.caller))


@modules.post("/modules/{module}/tasks/{task}", status_code=202, **told(Scope.MODULES_RUN, 404, 409, 429, body=True))
async def start_task(
    request: Request, module: Name, task: Name, visitor: Runner, call: TaskCall = _NO_TASK_PARAMS
) -> Started:
    """Start a task of a module for the caller, without waiting for it."""
    runtime = sandbox_of(request).runtime
    runtime.modules.loaded(module).surface("task", task)  # raises an error for a broken module or an unknown task
    number = await runtime.tasks.submit(module, task, call.params, visitor.caller, timeout=call.timeout_seconds)
    return Started(id=number)


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
