"""One call into an extension: under its guard, on behalf of a caller, with a timeout, with plain data in and out."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CallTimeout, InvalidInputError
from democrai_sandbox.guard import _core, plain

from .deadlines import deadlines
from .outcomes import capture, capture_async, release

if TYPE_CHECKING:
    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.guard import Guard

    from .loading import Surface
    from .threads import Threads


async def run_surface(
    surface: Surface, params: dict[str, Any], *, guard: Guard, caller: Caller, threads: Threads, seconds: float
) -> Any:
    """Return the result of an extension's function as plain data, or raise its error.

    The calling task steps the coroutine of an async function, because a separate task would cost several times as much
    as the guard. The coroutine still has a separate Context and cannot run past its timeout: see ``deadlines``.
    """
    token = _core.serve(caller)
    try:
        if surface.is_async:
            steps: Any = guard.run(capture_async, surface.function, **params)
            work: Any = steps.isolated()
        else:
            work = threads.submit(_in_thread, guard, caller, surface.function, params)
        outcome = await bounded(work, seconds, surface)
    finally:
        _core.unserve(token)
    return release(outcome)


def check_params(params: object) -> dict[str, Any]:
    """Return parameters for a function; refuse anything but a dict of plain data."""
    if type(params) is not dict:
        raise InvalidInputError.of(f"expected an object, got {type(params).__name__}", pointer="/params")
    given: dict[str, Any] = plain(params)
    return given


async def bounded(work: Any, seconds: float, surface: Surface) -> Any:
    """Await guarded work for at most ``seconds``; re-raise a cancellation that the guarded code swallowed."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("call extensions from an asyncio task")
    pending = deadlines()
    deadline = pending.add(task, work, seconds)
    try:
        outcome = await work
    except asyncio.CancelledError:
        if not deadline.is_past or deadline.settle():
            raise
        raise CallTimeout(f"{surface.kind} {surface.name} did not finish within {seconds:g} s") from None
    finally:
        pending.drop(deadline)
    if task.cancelling() > deadline.before and deadline.settle():
        raise asyncio.CancelledError
    return outcome


def _in_thread(guard: Guard, caller: Caller, function: Any, params: dict[str, Any]) -> Any:
    token = _core.serve(caller)
    try:
        return guard.run(capture, function, **params)
    finally:
        _core.unserve(token)
