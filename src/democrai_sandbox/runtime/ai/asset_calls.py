"""Calls between tools, agents and pipelines: arguments are plain data and checked, results are outcomes.

Everything here runs inside the guard of an asset, or of the module that calls one. The model of an agent can only
request tool calls, and each tool runs inside its own guard on top. An outcome is one of ``calls.outcome``, or one of
the three forms below. It is plain data, so objects never cross between subjects.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from functools import cache
from inspect import CO_COROUTINE
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from democrai_sandbox.errors import ExtensionFailed, ExternalAccessCheckFailed, ResultInvalid, SandboxDenied
from democrai_sandbox.errors.services import STOPPING_ERRORS, ModelFailed, RunStopped, StepFailed
from democrai_sandbox.guard import plain
from democrai_sandbox.guard._core import current_view
from democrai_sandbox.policy import InvalidInputError, Problem, SandboxError, hint_for
from democrai_sandbox.policy.text import exact_str, shown
from democrai_sandbox.runtime import sdk_services
from democrai_sandbox.runtime.calls.invocation import CallThreads
from democrai_sandbox.runtime.calls.outcome import INVALID, VALUE, Outcome, capture, capture_async, describe, release

from .model import AgentLimits, AssetRun, Message, Model, ToolCall, ToolOffer
from .schema import Build, argument_check, signature_shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import TracebackType

    from .assets import Asset

    Body = Callable[[dict[str, Any]], Awaitable[Outcome]]

Made = TypeVar("Made")

ARGUMENTS = "arguments"
"""The arguments were refused, and nothing was called: the problems."""
STOPPED = "stopped"
"""An error of this package: its code and its text."""
STEP = "step"
"""A step of a pipeline failed: its number, its name, and its own outcome."""


class Called(NamedTuple):
    """A function of a subject, called only inside that subject's guard."""

    function: Callable[..., Any]
    typed: bool = True
    """Whether it takes arguments by name, as annotated; otherwise it takes one value unchanged."""


def flags_of(function: Any) -> int:
    """Return the code flags of a function without running any of its code."""
    return int(function.__code__.co_flags)


def name_of(function: Any) -> str:
    """Return the name of a function in its source. ``__name__`` may be a string with methods of the subject."""
    return exact_str(function.__code__.co_name) or ""


def entry(schema: Mapping[str, Any], body: Body) -> Callable[[Any], Awaitable[Outcome]]:
    """Return the function behind an entrance: it copies and checks the arguments before anything else reads them."""
    check = argument_check(schema)

    async def enter(arguments: Any) -> Outcome:
        try:
            given = plain(arguments, lists=True)
            check(given)
        except InvalidInputError as error:
            return (ARGUMENTS, [[item.pointer, item.message, item.suggestion] for item in error.problems])
        try:
            return await body(given)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - every error becomes plain data
            kind = STOPPING_ERRORS.get(getattr(error, "code", ""))
            return (STOPPED, kind.code, str(error)) if kind is type(error) else describe(error)

    return enter


class AbsentAsset(NamedTuple):
    """A tool, agent or pipeline that runs in another process, or whose module is not loaded yet."""

    kind: str
    """Empty for a step that is named without its kind."""
    name: str


class UsedAsset(NamedTuple):
    """A tool, agent or pipeline that another one uses."""

    label: str
    """Subject that it runs as: ``tool:demo.peek``."""
    short: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[[Any], Awaitable[Outcome]]
    """Its entrance, or ``forwarded``."""


def described(asset: Asset) -> tuple[str, str, Mapping[str, Any]]:
    """Return the short name, the description and the schema of an asset."""
    return asset.short, str(asset.declaration.description or asset.schema.get("description", "")), asset.schema


def forwarded(kind: str, name: str) -> Callable[[Any], Awaitable[Outcome]]:
    """Return the call of an asset through the host, which decides whether the calling subject may use it."""

    async def body(given: Any) -> Outcome:
        return tuple(await sdk_services.later(sdk_services.call("ai.run", kind, name, given)))

    return entry({}, body)


def prepared(
    used: Sequence[PipelineStep | UsedAsset | AbsentAsset], make: Callable[[Sequence[Any]], Made]
) -> Callable[[], Awaitable[Made]]:
    """Return an async function for what ``make`` returns. For each run it asks the host about absent assets."""
    absent = [list(one) for one in used if isinstance(one, AbsentAsset)]
    made = None if absent else make([one for one in used if not isinstance(one, AbsentAsset)])

    async def ready() -> Made:
        if made is not None:
            return made
        found = map(_described, await sdk_services.later(sdk_services.call("ai.offers", absent)))
        return make([next(found) if isinstance(one, AbsentAsset) else one for one in used])

    return ready


def _described(facts: Sequence[Any]) -> UsedAsset:
    kind, name, short, description, schema = facts
    return UsedAsset(f"{kind}:{name}", short, description, schema, forwarded(kind, name))


def caller(called: Called) -> Callable[[Any], Awaitable[Outcome]]:
    """Return an async function that calls a function of the running subject and returns an outcome.

    A synchronous function runs in a thread under the same guard, because it may block the shared event loop.
    """
    function, threads = called.function, CallThreads()

    @cache
    def builder() -> Build | None:
        """Return the builder of typed values. The annotations are subject code: they are read inside the guard."""
        return signature_shape(function).build if called.typed else None

    def built(given: Any) -> Any:
        build = builder()
        return given if build is None else build(given)

    def call(given: Any) -> Any:
        made = built(given)
        return function(**made) if called.typed else function(made)

    async def call_async(given: Any) -> Outcome:
        try:
            made = built(given)
        except Exception as error:  # noqa: BLE001 - constructors of the subject's types
            return describe(error)
        return await (capture_async(function, **made) if called.typed else capture_async(function, made))

    async def call_sync(given: Any) -> Outcome:
        outcome: Outcome = await threads.run(capture, call, given)
        return outcome

    return call_async if flags_of(function) & CO_COROUTINE else call_sync


def settled(outcome: Outcome) -> Any:
    """Return the value of an outcome, or raise its error."""
    kind = outcome[0]
    if kind == ARGUMENTS:
        raise InvalidInputError(Problem(*problem) for problem in outcome[1])
    if kind == STOPPED:
        raise STOPPING_ERRORS[outcome[1]](outcome[2])
    if kind == STEP:
        _raise_step(*outcome[1:])
    return release(outcome)


def as_run(kind: str, outcome: Outcome) -> AssetRun:
    """Return the value of an outcome with its statistics; agents and pipelines report those, a tool does not."""
    value = settled(outcome)
    if kind == "tool":
        return AssetRun(value)
    result, turns, calls, denials = value
    return AssetRun(result, turns, calls, tuple(denials))


def _raise_step(number: int, name: str, inner: Outcome) -> None:
    """Raise the error of a step, with its number and name. A denial or a failed check keeps its type."""
    where = f"in step {number} ({name})"
    try:
        settled(inner)
    except (SandboxDenied, ExternalAccessCheckFailed) as error:
        error.add_note(where)
        raise
    except Exception as error:
        raise StepFailed(f"{where}: {type(error).__name__}: {error}") from error


LONGEST_RESULT = 100_000
"""Maximum characters of a tool's result that are sent to a model."""
_ROLES = ("system", "user", "assistant")


class OfferedTools(NamedTuple):
    """Tools of an agent, as its model sees them, and by the name that the model uses."""

    offers: tuple[ToolOffer, ...]
    tools: Mapping[str, UsedAsset]


_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_OFFER = 64


def offered(tools: Sequence[UsedAsset]) -> OfferedTools:
    """Return tools with names for a model: without dots, and without the module if they stay unique."""
    short = Counter(_offered(tool.short) for tool in tools)
    names = [
        _offered(tool.short if short[_offered(tool.short)] == 1 else tool.label.partition(":")[2]) for tool in tools
    ]
    offers = (ToolOffer(name, tool.description, tool.schema) for name, tool in zip(names, tools, strict=True))
    return OfferedTools(tuple(offers), MappingProxyType(dict(zip(names, tools, strict=True))))


def _offered(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)[-_LONGEST_OFFER:]


class AgentPlan(NamedTuple):
    """An agent, ready to run."""

    name: str
    prompt: Called
    instructions: str
    model: Model
    tools: Callable[[], Awaitable[OfferedTools]]
    limits: AgentLimits


def agent_body(plan: AgentPlan) -> Callable[[dict[str, Any]], Awaitable[Outcome]]:
    """Return the function that runs inside the agent's guard. Its outcome has the text, turns, calls and denials."""
    prompt = caller(plan.prompt)

    async def run(given: dict[str, Any]) -> Outcome:
        timeout = _RunTimeout(plan.limits)
        try:
            async with timeout:
                outcome = await prompt(given)
                if outcome[0] != VALUE:
                    return outcome
                messages = opening(plan, outcome[1], given)
                return (VALUE, await _Conversation(plan, timeout, await plan.tools(), messages).run())
        except TimeoutError:
            if not timeout.expired:
                raise
            raise RunStopped(f"agent {plan.name} did not finish within {plan.limits.seconds:g} s") from None

    return run


class _RunTimeout:
    """Timeout of a run, and of each of its parts, which are surrounded by ``begin`` and ``end``.

    ``asyncio.timeout`` would set a timer for each part. All parts have the same timeout, so a timer that was set before
    a part began fires before its deadline, and is then set to that deadline.
    """

    expired = False
    """Whether the run took too long."""
    _part_end: float | None = None
    _part_expired = False

    def __init__(self, limits: AgentLimits) -> None:
        self._seconds, self._part_seconds = limits.seconds, limits.tool_seconds

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a timeout needs a running task")
        self._task, self._loop, self._before = task, asyncio.get_running_loop(), task.cancelling()
        now = self._loop.time()
        self._end = now + self._seconds
        self._timer = self._loop.call_at(min(self._end, now + self._part_seconds), self._look)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self.expired and self._task.uncancel() <= self._before and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def begin(self) -> None:
        """Begin a part."""
        self._part_end = self._loop.time() + self._part_seconds

    def end(self) -> bool:
        """End the part. Return whether only its own timeout canceled it, and undo that cancellation."""
        self._part_end = None
        expired, self._part_expired = self._part_expired, False
        return expired and self._task.uncancel() <= self._before

    @property
    def is_canceled(self) -> bool:
        """Whether the run was canceled, by its timeout or from outside."""
        return self._task.cancelling() > self._before

    def _look(self) -> None:
        now = self._loop.time()
        if now >= self._end:
            self.expired = True
            self._task.cancel()
            return
        if self._part_end is not None and now >= self._part_end:
            self._part_end, self._part_expired = None, True
            self._task.cancel()
        next_part = self._part_end or now + self._part_seconds
        self._timer = self._loop.call_at(min(self._end, next_part), self._look)


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

    def __init__(self, plan: AgentPlan, timeout: _RunTimeout, offered: OfferedTools, messages: list[Message]) -> None:
        self._plan = plan
        self._timeout = timeout
        self._offered = offered
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
            reply = await self._plan.model.complete(tuple(self._messages), self._offered.offers)
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
        tool = self._offered.tools.get(call.name)
        if tool is None:
            hint = hint_for(call.name, self._offered.tools)
            return _error("unknown_tool", f"unknown tool {shown(call.name)}{hint}")
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError) as error:
            return _error("invalid_arguments", f"the arguments are not valid JSON: {error}")
        outcome = await self._called(tool.run, arguments)
        return outcome if isinstance(outcome, str) else self._told(tool.label, outcome)

    async def _called(self, run: Callable[[Any], Awaitable[Outcome]], arguments: Any) -> Outcome | str:
        self._timeout.begin()
        try:
            outcome: Outcome = await run(arguments)
        except asyncio.CancelledError:
            if self._timeout.end():
                return _error("tool_timeout", f"the tool took longer than {self._plan.limits.tool_seconds:g} s")
            if self._timeout.is_canceled:
                raise
            return _error("tool_failed", "the tool canceled itself")  # it raised CancelledError without a cancellation
        except BaseException:
            self._timeout.end()
            raise
        self._timeout.end()
        if self._timeout.is_canceled:
            raise asyncio.CancelledError  # the tool swallowed the cancellation of the run
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
    run: Callable[[Any], Awaitable[Outcome]]
    """Calls it with one value."""
    reports: bool = False
    """Whether it is an agent or a pipeline, which report statistics in addition to their value."""


def pipeline_body(
    name: str, first: Called, steps: Callable[[], Awaitable[Sequence[PipelineStep]]], seconds: float | None
) -> Callable[[dict[str, Any]], Awaitable[Outcome]]:
    """Return the function that runs inside the guard. Its outcome has the value, turns, calls and denials."""
    begin = caller(first)

    async def run(given: dict[str, Any]) -> Outcome:
        outcome = await begin(given)
        if outcome[0] != VALUE:
            return outcome
        value = given if outcome[1] is None else outcome[1]
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        turns, calls, denials = 0, 0, []
        for number, step in enumerate(await steps(), 1):
            outcome = await step.run(value)
            if task and task.cancelling() > before:
                raise asyncio.CancelledError  # the step swallowed the cancellation
            if outcome[0] != VALUE:
                return (STEP, number, step.label, outcome)
            value = outcome[1]
            if step.reports:
                value, more_turns, more_calls, more_denials = value
                turns, calls = turns + more_turns, calls + more_calls
                denials += more_denials
        return (VALUE, [value, turns, calls, denials])

    async def run_in_time(given: dict[str, Any]) -> Outcome:
        timeout = asyncio.timeout(seconds)
        try:
            async with timeout:
                return await run(given)
        except TimeoutError:
            if not timeout.expired():
                raise
            raise RunStopped(f"pipeline {name} did not finish within {seconds:g} s") from None

    return run if seconds is None else run_in_time


def pipeline_steps(used: Sequence[PipelineStep | UsedAsset]) -> tuple[PipelineStep, ...]:
    """Return the steps of a pipeline, ready to run."""
    return tuple(
        PipelineStep(one.label, _with_value(one), not one.label.startswith("tool:"))
        if isinstance(one, UsedAsset)
        else one
        for one in used
    )


def _with_value(used: UsedAsset) -> Callable[[Any], Awaitable[Outcome]]:
    """Return the call of an asset with one value, which goes to its only parameter, or to its only required one."""
    names, required = list(used.schema.get("properties", ())), used.schema.get("required", [])
    one = names if len(names) == 1 else required
    only, label, run = str(one[0]) if len(one) == 1 else "", used.label, used.run

    async def go(value: Any) -> Outcome:
        if type(value) is dict:
            outcome: Outcome = await run(value)
        elif only:
            outcome = await run({only: value})
        else:
            expected = f"expected an object with the arguments of {label}, got something else"
            outcome = (ARGUMENTS, [["", expected, None]])
        return outcome

    return go
