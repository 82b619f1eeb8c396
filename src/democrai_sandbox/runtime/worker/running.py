"""Preparation of calls under the subject's guard: functions, coroutines, and streams of either."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard import door
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime.plain_values import plain_result

from .calls import Credit, StreamClosed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from democrai_sandbox.guard import Guard
    from democrai_sandbox.runtime.activation import Activation
    from democrai_sandbox.runtime.loading import Surface

    from .calls import Call, Calls
    from .lines import Line

_MOST_GUARDS = 1024
CLOSED = ("failed", "CancelledError", "the call was canceled", "")
Job = tuple[int, "Guard", "Callable[..., Any]", tuple[Any, ...], dict[str, Any]]
"""A prepared call: its number, its guard, and the function with its arguments."""


class Runner:
    """Prepares and ends calls of the surfaces that the subject declared."""

    def __init__(
        self,
        activation: Activation,
        surfaces: Mapping[tuple[str, str], Surface],
        calls: Calls,
        control: Line,
        ending: Callable[[], None],
    ) -> None:
        """Run these surfaces as this subject; stream items go over the control socket.

        ``ending`` is called before a call ends, to send reports that belong to it.
        """
        self._ending = ending
        self._below = lru_cache(maxsize=256)(lambda chain: activation.below(tuple(map(Subject.parse, chain))))
        self._activation = activation
        self._surfaces = {key: (surface.function, surface.is_stream) for key, surface in surfaces.items()}
        self._calls = calls
        self._control = control
        self._guards: dict[tuple[str, ...], Guard] = {}

    def begin(self, call: Call) -> Job:
        """Begin a call on the current thread, or in the current task."""
        function: Callable[..., Any]
        function, streams = self._surfaces[call.kind, call.name]
        self._calls.begin(call)
        if call.cancelled:
            call.wanted = _nothing
            function, streams, call.params = (_nothing if call.task is None else _nothing_async), False, {}
        guard = self._guards.get(call.caller) if not call.ancestors else None
        if guard is None:
            guard = self._guard(call)
        if not streams:
            return call.number, guard, function, (), call.params
        if call.task is None:
            push = door(_pusher(call, self._control))
            return call.number, guard, _send_all, (function, push, call.params), {}
        push = door(_Outbox(call, self._control).push)
        return call.number, guard, _send_all_async, (function, push, call.params), {}

    def _guard(self, call: Call) -> Guard:
        """Return a guard for the caller; guards without a call chain are cached and shared by calls."""
        if call.ancestors:
            return self._below(call.ancestors).guard(call.caller)  # type: ignore[arg-type] # it fits
        if len(self._guards) >= _MOST_GUARDS:
            self._guards.clear()
        guard = self._guards[call.caller] = self._activation.guard(call.caller)  # type: ignore[arg-type] # it fits
        return guard

    def end(self, number: int, outcome: Any) -> Any:
        """End a call, and return its outcome."""
        self._ending()
        call = self._calls.end(number)
        stopped = call is not None and call.cancelled and call.wanted is not None
        return CLOSED if stopped or outcome is None else outcome


# ---- streams ---------------------------------------------------------------------------------------------------------


def _nothing() -> None:
    """Replace a call that was canceled before it began."""


async def _nothing_async() -> None:
    """Replace an async call that was canceled before it began."""


def _send_all(function: Callable[..., Iterator[Any]], push: Callable[[Any], None], params: dict[str, Any]) -> None:
    """Send each item out of the guard. Runs inside the guard, so that the generator never leaves it."""
    for item in function(**params):
        push(plain_result(item))


async def _send_all_async(
    function: Callable[..., AsyncIterator[Any]], push: Callable[[Any], Any], params: dict[str, Any]
) -> None:
    items: Any = function(**params)
    try:
        async for item in items:
            waiting = push(plain_result(item))
            if waiting is not None:
                await waiting
    finally:
        await items.aclose()


def _pusher(call: Call, line: Line) -> Callable[..., None]:
    credit = Credit(call)
    number = call.number

    def push(view: object, item: Any) -> None:
        del view
        credit.take()
        line.send(["item", number, item])

    return push


class _Outbox:
    """Sends items of an async generator while the host wants them; otherwise the generator awaits a future."""

    def __init__(self, call: Call, line: Line) -> None:
        self._call = call
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._kept: deque[tuple[Any, asyncio.Future[None]]] = deque()
        call.wanted = self._wanted

    def push(self, view: object, item: Any) -> asyncio.Future[None] | None:
        """Send an item, or store it until the host wants it."""
        del view
        if self._call.cancelled:
            raise StreamClosed
        if self._call.credit > 0:
            self._call.credit -= 1
            self._line.send(["item", self._call.number, item])
            return None
        if self._kept:
            raise StreamClosed("one item at a time")
        future = self._loop.create_future()
        self._kept.append((item, future))
        return future

    def _wanted(self) -> None:
        self._loop.call_soon_threadsafe(self._more)

    def _more(self) -> None:
        self._call.credit += 1
        if self._kept:
            item, future = self._kept.popleft()
            self._call.credit -= 1
            self._line.send(["item", self._call.number, item])
            if not future.done():
                future.set_result(None)
