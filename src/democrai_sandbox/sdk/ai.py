"""Tools, agents and pipelines: decorators that declare them, and functions that run them.

Each runs as a separate subject inside its caller. With ``access`` it may use exactly that list; without it, it has the
rights of its caller. Arguments and results are plain data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.runtime import sdk_services
from democrai_sandbox.runtime.ai.asset_calls import as_run
from democrai_sandbox.runtime.ai.model import AssetRun as Run
from democrai_sandbox.runtime.ai.schema import signature_shape

from .decorators import declare, given

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Access = Sequence[Mapping[str, Any]]

__all__ = ["Run", "agent", "pipeline", "run_agent", "run_pipeline", "run_tool", "tool"]

Function = TypeVar("Function", bound="Callable[..., Any]")


def tool(
    name: str,
    *,
    access: Access | None = None,
    allowed_imports: Sequence[str] = (),
    description: str = "",
    shared: bool = False,
) -> Callable[[Function], Function]:
    """Declare a tool: a function with a typed signature that agents, pipelines and the module itself can call.

    A model sees its types and the first paragraph of its docstring. Other modules may call it if it is ``shared``. A
    synchronous function runs in a thread.
    """
    options = _common(access, allowed_imports, description, shared)
    return lambda function: _declare("tool", name, options, function)


def agent(
    name: str,
    *,
    model: str,
    tools: Sequence[str] = (),
    instructions: str = "",
    access: Access | None = None,
    allowed_imports: Sequence[str] = (),
    description: str = "",
    shared: bool = False,
    max_turns: int | None = None,
    max_tool_calls: int | None = None,
    tool_timeout: float | None = None,
    timeout: float | None = None,
) -> Callable[[Function], Function]:
    """Declare an agent: a model of the host that uses these tools until it has an answer.

    The function returns the prompt for its arguments: a text, or messages with ``role`` and ``text``; None stands for
    the arguments themselves. The model is called inside the agent's guard, so the agent needs access to its address.
    """
    limits = given(max_turns=max_turns, max_tool_calls=max_tool_calls, tool_timeout=tool_timeout, timeout=timeout)
    options = {
        **_common(access, allowed_imports, description, shared),
        "model": model,
        "tools": list(tools),
        "instructions": instructions,
        **limits,
    }
    return lambda function: _declare("agent", name, options, function)


def pipeline(
    name: str,
    *,
    steps: Sequence[str | Callable[[Any], Any]],
    access: Access | None = None,
    allowed_imports: Sequence[str] = (),
    description: str = "",
    shared: bool = False,
    timeout: float | None = None,
) -> Callable[[Function], Function]:
    """Declare a pipeline: steps in order, each with the result of the one before.

    A step is the name of a tool, an agent or a pipeline (``collect``, or ``tool:collect`` if the name is ambiguous), or
    a function of the module, which takes the value as it is. The decorated function returns the first value for the
    arguments; None stands for the arguments themselves. An object becomes the arguments of the next step by name, any
    other value that of its only parameter.
    """
    common = _common(access, allowed_imports, description, shared)
    options = {**common, "steps": list(steps), **given(timeout=timeout)}

    def decorate(function: Function) -> Function:
        for index, step in enumerate(steps):
            if not isinstance(step, str):
                declare("step", f"{name}/{index}", {}, step)
                options["steps"][index] = f"step:{index}"
        return _declare("pipeline", name, options, function)

    return decorate


async def run_tool(name: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """Run a tool and return its result."""
    return (await _run("tool", name, arguments)).value


async def run_agent(name: str, arguments: Mapping[str, Any] | None = None) -> Run:
    """Run an agent: its text is the ``value``, and ``denials`` has the denials of its tools."""
    return await _run("agent", name, arguments)


async def run_pipeline(name: str, arguments: Mapping[str, Any] | None = None) -> Run:
    """Run a pipeline: the result of its last step is the ``value``."""
    return await _run("pipeline", name, arguments)


async def _run(kind: str, name: str, arguments: Mapping[str, Any] | None) -> Run:
    entrance = sdk_services.call("ai.entrance", kind, name)
    return as_run(kind, await entrance({} if arguments is None else arguments))


def _common(access: Access | None, imports: Sequence[str], description: str, shared: bool) -> dict[str, Any]:  # noqa: FBT001
    """Return the common options; a missing ``access`` differs from an empty one."""
    options: dict[str, Any] = {"shared": shared}
    if access is not None:
        options["access"] = [dict(entry) for entry in access]
    if imports:
        options["allowed_imports"] = list(imports)
    if description:
        options["description"] = description
    return options


def _declare(kind: str, name: str, options: dict[str, Any], function: Function) -> Function:
    return declare(kind, name, {**options, "schema": signature_shape(function).schema}, function)
