"""Tools, agents and pipelines inside a module: the cost of each level.

Not guarded, the same work is written as in an application without a sandbox: each level is a function that the level
above starts as a task, with the same model, the same arguments as JSON and the same timeouts.
"""

from __future__ import annotations

import asyncio
import json
from importlib import import_module
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.registry import SHORT_PARTS, case

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

LIMIT = 1.3
TOOL_SECONDS, SECONDS = 60.0, 300.0
WISH = '{"text": "x"}'


class Call(NamedTuple):
    """Tool call of the model without a sandbox."""

    id: str
    name: str
    arguments: str


class Said(NamedTuple):
    """Message of that model."""

    role: str
    text: str
    tool_calls: tuple[Call, ...] = ()
    tool_call_id: str = ""


class Model:
    """Requests one tool call, then answers."""

    def __init__(self, message: Any, call: Any) -> None:
        self._first = message("assistant", "", (call("1", "echo", WISH),))
        self._second = message("assistant", "done")

    async def complete(self, messages: Any, tools: Any) -> Any:
        del tools
        return self._first if len(messages) == 1 else self._second


async def echo(text: str) -> str:
    """Return the argument."""
    return text


async def prompt(text: str) -> str:
    """Create the prompt of an agent, and the first value of a pipeline."""
    return text


MODEL = Model(Said, Call)


async def _bare_agent(text: str) -> str:
    messages = [Said("user", await prompt(text))]
    async with asyncio.timeout(SECONDS):
        while True:
            said = await MODEL.complete(tuple(messages), ())
            messages.append(said)
            if not said.tool_calls:
                return str(said.text)
            for call in said.tool_calls:
                async with asyncio.timeout(TOOL_SECONDS):
                    result = await asyncio.create_task(echo(**json.loads(call.arguments)))
                messages.append(Said("tool", result, (), call.id))


async def _bare_pipeline(text: str) -> str:
    return await asyncio.create_task(_bare_agent(await prompt(text)))


def _runtime() -> Any:
    """Set up the levels like a host, once, and return the interface for guarded code."""
    sdk = import_module("democrai_sandbox.sdk.ai")
    doors = import_module("democrai_sandbox.runtime.sdk_services")
    if not doors.is_served("ai.entrance"):
        interface = import_module("democrai_sandbox.runtime.ai.model")
        models = {"bench": Model(interface.Message, interface.ToolCall)}
        ai = import_module("democrai_sandbox.runtime.ai.runtime").AiRuntime(models)
        ai.register("tool", echo, name="echo")
        ai.register("agent", prompt, name="asks", model="bench", tools=["echo"])
        ai.register("pipeline", prompt, name="all", steps=["agent:asks"])
        if ai.link():
            raise AssertionError(ai.link())
        doors.install({"ai.entrance": ai.entrance})
    return sdk


def _levels_loop(
    bed: Fixture, guarded: Callable[[Any], Callable[[], Awaitable[Any]]], bare: Callable[..., Any]
) -> Loop:
    events = asyncio.new_event_loop()

    async def turns_of(turns: int, turn: Callable[[], Awaitable[Any]]) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            await turn()
        return perf_counter_ns() - start

    if not bed.guarded:
        return lambda turns: events.run_until_complete(turns_of(turns, lambda: asyncio.create_task(bare("x"))))
    turn = guarded(_runtime())

    async def inside(turns: int) -> int:
        elapsed: int = await bed.run(turns_of, turns, turn)
        return elapsed

    return lambda turns: events.run_until_complete(inside(turns))


@case("tool, from a module", limit=LIMIT, wrapped=False, reference=False, parts=SHORT_PARTS)
def tool_level(bed: Fixture) -> Loop:
    return _levels_loop(bed, lambda sdk: lambda: sdk.run_tool("echo", {"text": "x"}), echo)


@case("pipeline, agent, tool", limit=LIMIT, wrapped=False, reference=False, parts=SHORT_PARTS)
def all_levels(bed: Fixture) -> Loop:
    return _levels_loop(bed, lambda sdk: lambda: sdk.run_pipeline("all", {"text": "x"}), _bare_pipeline)
