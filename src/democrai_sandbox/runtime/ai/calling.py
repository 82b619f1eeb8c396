"""Calls between tools, agents and pipelines: what goes in is plain and checked, what comes out is an outcome.

Everything here runs inside the guard of one of them, or of the module that calls one. An outcome is that of
``runtime.outcomes``, or one of the three forms below; it is plain data, so no level ever holds an object that another
one made.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ExternalAccessCheckFailed, SandboxDenied
from democrai_sandbox.guard import plain
from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.text import exact_str
from democrai_sandbox.runtime.outcomes import VALUE, Outcome, capture, capture_async, describe, release

from .errors import STOPPING, StepFailed
from .interface import Run
from .quick import argument_check
from .schema import signature_shape
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from .schema import Build

    Body = Callable[[dict[str, Any]], Awaitable[Outcome]]

ARGUMENTS = "arguments"
"""The arguments were refused, and nothing was called: the problems."""
STOPPED = "stopped"
"""An error of this package: its code and its text."""
STEP = "step"
"""A step of a pipeline came to nothing: its number, its name, and its own outcome."""


class Called(NamedTuple):
    """A function of a subject's, which is only ever called inside that subject's guard."""

    function: Callable[..., Any]
    is_async: bool
    typed: bool = True
    """Whether it takes arguments by name, as its annotations say; else it takes one value as it is."""


def flags_of(function: Any) -> int:
    """Return what kind of function it is, by its code: nothing of the function's own runs."""
    return int(function.__code__.co_flags)


def name_of(function: Any) -> str:
    """Return what a function is called in its source. ``__name__`` may be a text with methods of the subject's own."""
    return exact_str(function.__code__.co_name) or ""


def entry(schema: Mapping[str, Any], body: Body) -> Callable[[Any], Awaitable[Outcome]]:
    """Return what an entrance leads to: the arguments are copied and checked before anything else sees them."""
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
        except BaseException as error:  # noqa: BLE001 - it has to be told in plain data, whatever it is
            return _told(error)

    return enter


def caller(called: Called) -> Callable[[Any], Awaitable[Outcome]]:
    """Return how to call a function of the subject that is running, and get an outcome.

    A function that is not async runs in a thread, under the same guard: it may block, and the loop is everybody's.
    """
    function, builder, threads = called.function, _Builder(called), Threads()

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


def _call(function: Callable[..., Any], builder: _Builder, given: Any) -> Any:
    made = builder.build(given)
    return function(**made) if builder.typed else function(made)


class _Builder:
    """Makes typed values of plain ones. Annotations are the subject's code: the first call reads them, in its guard."""

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


def _told(error: BaseException) -> Outcome:
    kind = STOPPING.get(getattr(error, "code", ""))
    return (STOPPED, kind.code, str(error)) if kind is type(error) else describe(error)


# ---- on the other side -----------------------------------------------------------------------------------------------


def settled(outcome: Outcome) -> Any:
    """Return the value of an outcome, or raise what it says."""
    kind = outcome[0]
    if kind == ARGUMENTS:
        raise InvalidInputError(Problem(*problem) for problem in outcome[1])
    if kind == STOPPED:
        raise STOPPING[outcome[1]](outcome[2])
    if kind == STEP:
        _, number, name, inner = outcome
        _raise_step(number, name, inner)
    return release(outcome)


def as_run(kind: str, outcome: Outcome) -> Run:
    """Return the value of an outcome with what it took; agents and pipelines tell that, a tool is its value alone."""
    value = settled(outcome)
    if kind == "tool":
        return Run(value)
    result, turns, calls, denials = value
    return Run(result, turns, calls, tuple(denials))


def _raise_step(number: int, name: str, inner: Outcome) -> None:
    """Name the step. A denial stays one, and so does a check that could not be made."""
    where = f"in step {number} ({name})"
    try:
        settled(inner)
    except (SandboxDenied, ExternalAccessCheckFailed) as error:
        error.add_note(where)
        raise
    except Exception as error:
        raise StepFailed(f"{where}: {type(error).__name__}: {error}") from error


def is_value(outcome: Outcome) -> bool:
    """Tell whether something came of it."""
    return bool(outcome[0] == VALUE)
