"""Running modules: renders, actions, commands and tasks, each as whoever calls."""

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
"""Characters and bytes of what a module returns: it is held in memory, several times over."""


class Call(Order):
    """What a function of a module is called with."""

    params: dict[str, Any] = Field(default={}, description="Arguments by name.")


class TaskCall(Call):
    """What a task is started with."""

    timeout_seconds: float | None = Field(default=None, gt=0, description="Less than the task may take by itself.")


# For requests without a body, which call a function without arguments.
_NO_PARAMS, _NO_TASK_PARAMS = Call(), TaskCall()


class Result(Answer):
    """What a function of a module returned."""

    result: Data


_CALLS = told(Scope.MODULES_RUN, 404, 409, 502, 504, body=True) | {"response_model": Result}


class Started(Answer):
    """A task that was taken; `/tasks/{task_id}` tells what becomes of it."""

    id: str


@modules.post("/modules/{module}/render", **_CALLS)
async def render_module(request: Request, module: Name, visitor: Runner, call: Call = _NO_PARAMS) -> Response:
    """Return what a module shows to whoever calls."""
    return await _result(sandbox_of(request).runtime.modules.render(module, call.params, visitor.caller))


@modules.post("/modules/{module}/actions/{action}", **_CALLS)
async def run_action(
    request: Request, module: Name, action: Name, visitor: Runner, call: Call = _NO_PARAMS
) -> Response:
    """Have a module act; what it may not do is a 403 that names the target, the fix, and the request that waits."""
    return await _result(sandbox_of(request).runtime.modules.action(module, action, call.params, visitor.caller))


@modules.post("/modules/{module}/commands/{command}", **_CALLS)
async def run_command(
    request: Request, module: Name, command: Name, visitor: Runner, call: Call = _NO_PARAMS
) -> Response:
    """Have a module carry out a command."""
    return await _result(sandbox_of(request).runtime.modules.command(module, command, call.params, visitor.caller))


@modules.post("/modules/{module}/tasks/{task}", status_code=202, **told(Scope.MODULES_RUN, 404, 409, 429, body=True))
async def start_task(
    request: Request, module: Name, task: Name, visitor: Runner, call: TaskCall = _NO_TASK_PARAMS
) -> Started:
    """Start a task of a module; it runs on for whoever calls, and is not waited for."""
    runtime = sandbox_of(request).runtime
    runtime.modules.loaded(module).surface("task", task)  # says what is wrong with the module, or that it has none
    number = await runtime.tasks.submit(module, task, call.params, visitor.caller, timeout=call.timeout_seconds)
    return Started(id=number)


async def _result(work: Awaitable[Any]) -> Response:
    """Wait for a module. An error of a service it used, such as an MCP server's, is a failure of the module here."""
    try:
        value = await work
    except SandboxError as error:
        if status_of(error) is not None:
            raise
        raise ExtensionFailed(str(error), kind=error.code) from error
    return await run_in_threadpool(_answer, value)  # not on the loop, where everybody would wait for it


def _answer(value: Any) -> Response:
    if weight(value) > LARGEST_RESULT:
        raise ExtensionFailed(f"what it returned is larger than {LARGEST_RESULT:,} characters", kind="TooLarge")
    return PlainResponse({"result": jsonable(value)})
