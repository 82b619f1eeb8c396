"""Calls between tools, agents and pipelines: arguments are plain data and checked, results are outcomes.

Everything here runs inside the guard of an asset, or of the module that calls one. An outcome is one of
``calls.outcome``, or one of the three forms below. It is plain data, so objects never cross between subjects.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ExternalAccessCheckFailed, SandboxDenied
from democrai_sandbox.errors.services import STOPPING_ERRORS, StepFailed
from democrai_sandbox.guard import plain
from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.text import exact_str
from democrai_sandbox.runtime.calls.outcome import VALUE, Outcome, capture, capture_async, describe, release
from democrai_sandbox.runtime.calls.threads import CallThreads

from .model import AssetRun
from .schema import argument_check, signature_shape

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .schema import Build

    Body = Callable[[dict[str, Any]], Awaitable[Outcome]]

ARGUMENTS = "arguments"
"""The arguments were refused, and nothing was called: the problems."""
STOPPED = "stopped"
"""An error of this package: its code and its text."""
STEP = "step"
"""A step of a pipeline failed: its number, its name, and its own outcome."""


class Called(NamedTuple):
    """A function of a subject, called only inside that subject's guard."""

    function: Callable[..., Any]
    is_async: bool
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


def caller(called: Called) -> Callable[[Any], Awaitable[Outcome]]:
    """Return an async function that calls a function of the running subject and returns an outcome.

    A synchronous function runs in a thread under the same guard, because it may block the shared event loop.
    """
    function, builder, threads = called.function, _ArgumentsBuilder(called), CallThreads()

    async def call_async(given: Any) -> Outcome:
        try:
            made = builder.build(given)
        except Exception as error:  # noqa: BLE001 - constructors of the subject's types
            return describe(error)
        return await (capture_async(function, **made) if called.typed else capture_async(function, made))

    async def call_sync(given: Any) -> Outcome:
        outcome: Outcome = await threads.run(capture, _call, function, builder, given)
        return outcome

    return call_async if called.is_async else call_sync


def _call(function: Callable[..., Any], builder: _ArgumentsBuilder, given: Any) -> Any:
    made = builder.build(given)
    return function(**made) if builder.typed else function(made)


class _ArgumentsBuilder:
    """Builds typed values from plain ones.

    The first call reads the annotations, inside the guard: they are subject code.
    """

    __slots__ = ("_function", "_made", "typed")

    def __init__(self, called: Called) -> None:
        self._function = called.function
        self.typed = called.typed
        self._made: tuple[Build | None] | None = None if called.typed else (None,)

    def build(self, given: Any) -> Any:
        if self._made is None:
            self._made = (signature_shape(self._function).build,)
        build = self._made[0]
        return given if build is None else build(given)


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


def is_value(outcome: Outcome) -> bool:
    """Return whether the call succeeded."""
    return bool(outcome[0] == VALUE)
