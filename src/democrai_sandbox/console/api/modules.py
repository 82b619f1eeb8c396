"""Running modules: renders, actions, commands and tasks, each as whoever calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import Field

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
_CALLS = told(Scope.MODULES_RUN, 404, 409, 502, 504, body=True)


class Call(Order):
    """What a function of a module is called with."""

    params: dict[str, Any] = Field(default={}, description="Arguments by name.")


class TaskCall(Call):
    """What a task is started with."""

    timeout_seconds: float | None = Field(default=None, gt=0, description="Less than the task may take by itself.")


class Result(Answer):
    """What a function of a module returned."""

    result: Data


class Started(Answer):
    """A task that was taken; `/tasks/{task_id}` tells what becomes of it."""

    id: str


@modules.post("/modules/{module}/render", **_CALLS)
async def render_module(request: Request, module: Name, call: Call, visitor: Runner) -> Result:
    """Return what a module shows to whoever calls."""
    return await _result(sandbox_of(request).runtime.modules.render(module, call.params, visitor.caller))


@modules.post("/modules/{module}/actions/{action}", **_CALLS)
async def run_action(request: Request, module: Name, action: Name, call: Call, visitor: Runner) -> Result:
    """Have a module act; what it may not do is a 403 that names the target, the fix, and the request that waits."""
    return await _result(sandbox_of(request).runtime.modules.action(module, action, call.params, visitor.caller))


@modules.post("/modules/{module}/commands/{command}", **_CALLS)
async def run_command(request: Request, module: Name, command: Name, call: Call, visitor: Runner) -> Result:
    """Have a module carry out a command."""
    return await _result(sandbox_of(request).runtime.modules.command(module, command, call.params, visitor.caller))


@modules.post("/modules/{module}/tasks/{task}", status_code=202, **told(Scope.MODULES_RUN, 404, 409, 429, body=True))
async def start_task(request: Request, module: Name, task: Name, call: TaskCall, visitor: Runner) -> Started:
    """Start a task of a module; it runs on for whoever calls, and is not waited for."""
    runtime = sandbox_of(request).runtime
    runtime.modules.loaded(module).surface("task", task)  # says what is wrong with the module, or that it has none
    number = await runtime.tasks.submit(module, task, call.params, visitor.caller, timeout=call.timeout_seconds)
    return Started(id=number)


async def _result(work: Awaitable[Any]) -> Result:
    """Wait for a module. An error of a service it used, such as an MCP server's, is a failure of the module here."""
    try:
        return Result(result=await work)
    except SandboxError as error:
        if status_of(error) is not None:
            raise
        raise ExtensionFailed(str(error), kind=error.code) from error
