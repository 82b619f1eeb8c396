"""Bodies of agents and pipelines: the loop of model and tools within time limits, and steps in order.

``asyncio.timeout`` around every call would set a timer each time. All calls have the same timeout, so a timer that was
set before a call began fires before the call's deadline, and is then set to that deadline.

The loop runs inside the agent's guard, and each tool inside its own guard on top. The model can only request tool
calls.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ExtensionFailed, ResultInvalid, SandboxDenied
from democrai_sandbox.errors.services import STOPPING_ERRORS, ModelFailed, RunStopped
from democrai_sandbox.guard._core import current_view
from democrai_sandbox.policy import InvalidInputError, SandboxError, nearest
from democrai_sandbox.policy.text import shown
from democrai_sandbox.runtime.calls.outcome import INVALID, VALUE, Outcome

from .asset_calls import ARGUMENTS, STEP, Called, caller, is_value, settled
from .model import AgentLimits, Message, Model, ToolCall, ToolOffer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from types import TracebackType
    from typing import Self

    from democrai_sandbox.guard import Entrance


class RunTimeout:
    """Context for a whole run; ``begin`` and ``end`` surround a part. Work past its deadline is canceled."""

    def __init__(self, seconds: float, part_seconds: float) -> None:
        """Take the limits for the run and for a part."""
        self._seconds, self._part_seconds = seconds, part_seconds
        self._part_end: float | None = None
        self._cancelled = ""

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a time limit needs a running task")
        self._task, self._loop = task, asyncio.get_running_loop()
        self._before = task.cancelling()
        now = self._loop.time()
        self._end = now + self._seconds
        self._timer = self._loop.call_at(min(self._end, now + self._part_seconds), self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._cancelled and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def begin(self) -> None:
        """Begin a part."""
        self._part_end = self._loop.time() + self._part_seconds

    def end(self) -> None:
        """End the part, and undo its own cancellation if the code swallowed it."""
        self._part_end = None
        self.part_is_over_time()

    def part_is_over_time(self) -> bool:
        """Return whether a canceled part exceeded its own timeout; undo its cancellation in that case."""
        if self._cancelled != "part":
            return False
        self._cancelled = ""
        return self._task.uncancel() <= self._before

    def check(self) -> None:
        """Raise the cancellation of the task if the code that ran swallowed it."""
        if self._task.cancelling() > self._before:
            raise asyncio.CancelledError

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._end or (self._part_end is not None and now >= self._part_end):
            self._cancelled = "run" if now >= self._end else "part"
            self._part_end = None
            self._task.cancel()
        if now < self._end:
            next_part = self._part_end or now + self._part_seconds
            self._timer = self._loop.call_at(min(self._end, next_part), self._look)


LONGEST_RESULT = 100_000
"""Maximum characters of a tool's result that are sent to a model."""
_ROLES = ("system", "user", "assistant")


class ToolLink(NamedTuple):
    """A tool of an agent."""

    label: str
    """Subject that it runs as: ``tool:demo.peek``."""
    entrance: Entrance


class AgentPlan(NamedTuple):
    """An agent, ready to run."""

    name: str
    prompt: Called
    instructions: str
    model: Model
    offers: tuple[ToolOffer, ...]
    tools: Mapping[str, ToolLink]
    """Tools by the name that the model uses."""
    limits: AgentLimits


def agent_body(plan: AgentPlan) -> Callable[[dict[str, Any]], Awaitable[Outcome]]:
    """Return the function that runs inside the agent's guard. Its outcome has the text, turns, calls and denials."""
    prompt = caller(plan.prompt)

    async def run(given: dict[str, Any]) -> Outcome:
        patience = RunTimeout(plan.limits.seconds, plan.limits.tool_seconds)
        try:
            async with patience:
                outcome = await prompt(given)
                if not is_value(outcome):
                    return outcome
                return (VALUE, await _Conversation(plan, patience, opening(plan, outcome[1], given)).run())
        except TimeoutError:
            raise RunStopped(f"agent {plan.name} did not finish within {plan.limits.seconds:g} s") from None

    return run


def opening(plan: AgentPlan, prompt: Any, given: dict[str, Any]) -> list[Message]:
    """Return the first messages: the instructions, and the prompt that the agent's function returned."""
    messages = [Message("system", plan.instructions)] if plan.instructions else []
    if prompt is None:
        prompt = json.dumps(given, ensure_ascii=False)
    if type(prompt) is str:
        return [*messages, Message("user", prompt)]
    if type(prompt) is list and prompt and all(map(_is_message, prompt)):
        return [*messages, *(Message(item["role"], item["text"]) for item in prompt)]
    expected = f"a text, None, or a list of messages with a role ({', '.join(_ROLES)}) and a text"
    raise InvalidInputError.of(f"the function of agent {plan.name} must return a prompt: {expected}")


def _is_message(item: Any) -> bool:
    return (
        type(item) is dict and item.keys() == {"role", "text"} and item["role"] in _ROLES and type(item["text"]) is str
    )


def _is_reply(reply: Any) -> bool:
    return (
        type(reply) is Message
        and type(reply.text) is str
        and all(type(call) is ToolCall and all(type(part) is str for part in call) for call in reply.tool_calls)
    )


class _Conversation:
    """One run of an agent."""

    def __init__(self, plan: AgentPlan, patience: RunTimeout, messages: list[Message]) -> None:
        self._plan = plan
        self._patience = patience
        self._messages = messages
        self._calls = 0
        self._denials: list[dict[str, Any]] = []

    async def run(self) -> list[Any]:
        limits = self._plan.limits
        for turn in range(1, limits.turns + 1):
            reply = await self._reply()
            self._messages.append(reply)
            if not reply.tool_calls:
                return [reply.text, turn, self._calls, self._denials]
            for call in reply.tool_calls:
                self._calls += 1
                if self._calls > limits.tool_calls:
                    raise RunStopped(f"agent {self._plan.name} requested more than {limits.tool_calls} tool calls")
                self._messages.append(Message("tool", await self._answer(call), (), call.id))
        raise RunStopped(f"agent {self._plan.name} did not finish within {limits.turns} turns")

    async def _reply(self) -> Message:
        try:
            reply = await self._plan.model.complete(tuple(self._messages), self._plan.offers)
        except SandboxError:
            raise
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            # Only the name, because the text may contain the model's settings.
            raise ModelFailed(f"the model of agent {self._plan.name} raised {type(error).__name__}") from None
        if not _is_reply(reply):
            raise ModelFailed(f"the model of agent {self._plan.name} did not answer with a Message")
        return reply

    async def _answer(self, call: ToolCall) -> str:
        """Return the message that tells the model the result of a tool call."""
        tool = self._plan.tools.get(call.name)
        if tool is None:
            close = nearest(call.name, self._plan.tools)
            hint = f"; did you mean {close!r}?" if close else ""
            return _error("unknown_tool", f"unknown tool {shown(call.name)}{hint}")
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return _error("invalid_arguments", f"the arguments are not valid JSON: {error}")
        outcome = await self._called(tool.entrance, arguments)
        return outcome if isinstance(outcome, str) else self._told(tool.label, outcome)

    async def _called(self, entrance: Entrance, arguments: Any) -> Outcome | str:
        self._patience.begin()
        try:
            outcome: Outcome = await entrance(arguments)
        except asyncio.CancelledError:
            if self._patience.part_is_over_time():
                return _error("tool_timeout", f"the tool took longer than {self._plan.limits.tool_seconds:g} s")
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return _error("tool_failed", "the tool canceled itself")  # it raised CancelledError without a cancellation
        finally:
            self._patience.end()
        self._patience.check()
        return outcome

    def _told(self, label: str, outcome: Outcome) -> str:
        """Return an outcome as a message for the model; raise errors that end the run."""
        try:
            return _result(settled(outcome))
        except SandboxDenied as denial:
            self._denials.append(denial_facts(label, denial))
            return _error(denial.code, str(denial))
        except InvalidInputError as error:
            return _error("invalid_result" if outcome[0] == INVALID else "invalid_arguments", str(error))
        except ResultInvalid as error:
            return _error("invalid_result", str(error))
        except ExtensionFailed as error:
            return _error("tool_failed", str(error))
        except tuple(STOPPING_ERRORS.values()) as error:
            return _error(getattr(error, "code", "tool_failed"), str(error))


def denial_facts(label: str, denial: SandboxDenied) -> dict[str, Any]:
    """Return a denial of a tool as plain data, for the report of a run.

    Code of the tool could have raised it, so its call chain is used only if it begins with the tool's own chain.
    """
    view = current_view()
    known = [*(view[1] if view else ()), label]
    told = list(map(str, denial.subject_chain))
    return {
        "tool": label,
        "code": denial.code,
        "message": str(denial),
        "subject_chain": told if told[: len(known)] == known else known,
        "operation": denial.operation,
        "target": denial.target,
        "request_id": getattr(denial, "request_id", None),
        "hint": denial.hint,
    }


def _result(value: Any) -> str:
    try:
        text = value if type(value) is str else json.dumps(value, ensure_ascii=False)
    except TypeError:
        return _error("invalid_result", "the result contains bytes, which cannot be sent to a model")
    if len(text) <= LONGEST_RESULT:
        return text
    return f"{text[:LONGEST_RESULT]}\n[{len(text) - LONGEST_RESULT} more characters omitted]"


def _error(code: str, message: str) -> str:
    return json.dumps({"error": {"code": code, "message": message[:2000]}}, ensure_ascii=False)


class PipelineStep(NamedTuple):
    """One step, ready to run."""

    label: str
    """``tool:demo.collect``, ``agent:demo.writer``, ``pipeline:demo.rest`` or ``function:shape``."""
    entrance: Entrance | None
    called: Called | None
    """Function of the pipeline itself, which runs as the pipeline."""
    reports: bool = False
    """Whether it is an agent or a pipeline, which report statistics in addition to their value."""
    only: str = ""
    """Name of its only parameter, or of its only required one."""


class PipelinePlan(NamedTuple):
    """A pipeline, ready to run."""

    name: str
    begin: Called
    steps: tuple[PipelineStep, ...]
    seconds: float | None


def pipeline_body(plan: PipelinePlan) -> Callable[[dict[str, Any]], Awaitable[Outcome]]:
    """Return the function that runs inside the guard. Its outcome has the value, turns, calls and denials."""
    begin = caller(plan.begin)
    steps = [(step, _runner(step)) for step in plan.steps]

    async def run(given: dict[str, Any]) -> Outcome:
        outcome = await begin(given)
        if not is_value(outcome):
            return outcome
        value = given if outcome[1] is None else outcome[1]
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        turns, calls, denials = 0, 0, []
        for number, (step, go) in enumerate(steps, 1):
            outcome = await go(value)
            if task and task.cancelling() > before:
                raise asyncio.CancelledError  # the step swallowed the cancellation
            if not is_value(outcome):
                return (STEP, number, step.label, outcome)
            value = outcome[1]
            if step.reports:
                value, more_turns, more_calls, more_denials = value
                turns, calls = turns + more_turns, calls + more_calls
                denials += more_denials
        return (VALUE, [value, turns, calls, denials])

    async def run_in_time(given: dict[str, Any]) -> Outcome:
        patience = asyncio.timeout(plan.seconds)
        try:
            async with patience:
                return await run(given)
        except TimeoutError:
            if not patience.expired():
                raise
            raise RunStopped(f"pipeline {plan.name} did not finish within {plan.seconds:g} s") from None

    return run if plan.seconds is None else run_in_time


def _runner(step: PipelineStep) -> Callable[[Any], Awaitable[Outcome]]:
    if step.called is not None:
        return caller(step.called)
    entrance = step.entrance
    assert entrance is not None  # noqa: S101 - a step is one or the other

    async def go(value: Any) -> Outcome:
        if type(value) is dict:
            outcome: Outcome = await entrance(value)
        elif step.only:
            outcome = await entrance({step.only: value})
        else:
            expected = f"expected an object with the arguments of {step.label}, got something else"
            outcome = (ARGUMENTS, [["", expected, None]])
        return outcome

    return go
