"""Pipelines: steps in order, the result of each is the input of the next."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors.ai import RunStopped
from democrai_sandbox.runtime.outcomes import VALUE, Outcome

from .calling import ARGUMENTS, STEP, Called, caller, is_value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from democrai_sandbox.guard import Entrance


class Step(NamedTuple):
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
    steps: tuple[Step, ...]
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


def _runner(step: Step) -> Callable[[Any], Awaitable[Outcome]]:
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
