"""Running calls inside a worker: prepared under the guard of the subject, canceled, and streamed."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.guard import Guard, door
from democrai_sandbox.policy import AccessRule, Subject, rules_from_json
from democrai_sandbox.runtime.calls.invocation import GuardFactory
from democrai_sandbox.runtime.calls.outcome import plain_result

from .process import NOBODY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from democrai_sandbox.guard.interface import RawView
    from democrai_sandbox.runtime.extensions.importer import Surface

    from .host_client import WorkerSocket

# Only the number: guarded code can read the variable, so it must not reference an object.
_present: ContextVar[int] = ContextVar("democrai_call", default=0)


def present_number() -> int:
    """Return the call number that the running code claims; 0 for none. The host verifies it."""
    number = _present.get()
    return number if type(number) is int else 0


class SubjectSection(NamedTuple):
    """Declarations of a subject, as a guard factory needs them."""

    access: tuple[AccessRule, ...]
    allowed_imports: tuple[str, ...]


class StreamClosed(Exception):  # noqa: N818 - a signal, not an error
    """Signal that the rest of a stream is not wanted."""


class WorkerCall:
    """One call, from its frame to its reply."""

    cancelled = False
    task: asyncio.Task[Any] | None = None
    wanted: Callable[[], object] | None = None
    """Wakes the generator that waits for credit."""

    def __init__(self, message: list[Any]) -> None:
        _, self.number, self.kind, self.name, self.params, caller, ancestors, self.credit, *lent = message
        self.caller: tuple[str, ...] = tuple(caller) if caller else NOBODY
        self.ancestors: tuple[str, ...] = tuple(ancestors) if ancestors else ()
        self.lent = (lent[0], tuple(lent[1])) if lent else None
        """Rules as JSON, and imports, of the subject that calls a shared asset."""


class WorkerCalls:
    """All running calls. Used by all threads."""

    def __init__(self) -> None:
        self.running: dict[int, WorkerCall] = {}
        self._cancelled: set[int] = set()
        self._changing = threading.Lock()

    def begin(self, call: WorkerCall) -> None:
        """Add a call, and attribute the current thread or task to it."""
        with self._changing:
            self.running[call.number] = call
            call.cancelled = call.number in self._cancelled
        _present.set(call.number)

    def cancel(self, number: int) -> WorkerCall | None:
        """Mark a call as canceled and return it; a call that arrives later does not run."""
        with self._changing:
            call = self.running.get(number)
            if call is None:
                self._cancelled.add(number)
            else:
                call.cancelled = True
            return call

    def forget(self, number: int) -> None:
        """Remove a cancellation, because the host knows that the call has ended."""
        with self._changing:
            self._cancelled.discard(number)

    def present(self, view: RawView | None) -> WorkerCall | None:
        """Return the call of the asking code, matched by identity, because the code can change the variable."""
        call = self.running.get(_present.get())
        if call is not None and _is_for(call, view):
            return call
        return next((other for other in tuple(self.running.values()) if _is_for(other, view)), None)


def _is_for(call: WorkerCall, view: RawView | None) -> bool:
    if view is None:
        return False
    theirs = (view.user_id or "", view.organization_id or "", view.session_key or "")
    return theirs == call.caller[:3]


_MOST_GUARDS = 1024
CLOSED = ("failed", "CancelledError", "the call was canceled", "")
Job = tuple[int, "Guard", "Callable[..., Any]", tuple[Any, ...], dict[str, Any]]
"""A prepared call: its number, its guard, and the function with its arguments."""


class CallRunner:
    """Prepares and ends calls of the surfaces that the subject declared."""

    def __init__(
        self,
        factory: GuardFactory,
        surfaces: Mapping[tuple[str, str], Surface],
        calls: WorkerCalls,
        control: WorkerSocket,
        ending: Callable[[], None],
    ) -> None:
        """Run these surfaces as this subject; stream items go over the control socket.

        ``ending`` is called before a call ends, to send reports that belong to it.
        """
        self._ending = ending
        self._below = lru_cache(maxsize=256)(lambda chain: factory.below(tuple(map(Subject.parse, chain))))
        self._lent = lru_cache(maxsize=256)(_lent)
        self._factory = factory
        self._surfaces = {key: (surface.function, surface.is_stream) for key, surface in surfaces.items()}
        self._calls = calls
        self._control = control
        self._guards: dict[tuple[str, ...], Guard] = {}

    def begin(self, call: WorkerCall) -> Job:
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

    def _guard(self, call: WorkerCall) -> Guard:
        """Return a guard for the caller; guards without a call chain are cached and shared by calls."""
        if call.lent is not None:
            return self._lent(call.ancestors, *call.lent).guard(call.caller)  # type: ignore[arg-type] # it fits
        if call.ancestors:
            return self._below(call.ancestors).guard(call.caller)  # type: ignore[arg-type] # it fits
        if len(self._guards) >= _MOST_GUARDS:
            self._guards.clear()
        guard = self._guards[call.caller] = self._factory.guard(call.caller)  # type: ignore[arg-type] # it fits
        return guard

    def end(self, number: int, outcome: Any) -> Any:
        """End a call, and return its outcome."""
        self._ending()
        call = self._calls.running.pop(number, None)
        stopped = call is not None and call.cancelled and call.wanted is not None
        return CLOSED if stopped or outcome is None else outcome


def _lent(chain: tuple[str, ...], access: str, imports: tuple[str, ...]) -> GuardFactory:
    """Return the guard of the last subject of a chain, in which a shared asset of this worker runs."""
    *outer, subject = map(Subject.parse, chain)
    section = SubjectSection(rules_from_json(access), imports)
    return GuardFactory(subject, section, ancestors=tuple(outer))  # type: ignore[arg-type] # it fits


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


def _pusher(call: WorkerCall, line: WorkerSocket) -> Callable[..., None]:
    """Return the function that sends one item as soon as the host accepts it; a plain generator waits in it."""
    more = threading.Semaphore(call.credit)
    call.wanted = more.release

    def push(view: object, item: Any) -> None:
        del view
        more.acquire()
        if call.cancelled:
            raise StreamClosed
        line.send(["item", call.number, item])

    return push


class _Outbox:
    """Sends items of an async generator while the host wants them; otherwise the generator awaits a future."""

    def __init__(self, call: WorkerCall, line: WorkerSocket) -> None:
        self._call = call
        self._line = line
        self._loop = asyncio.get_running_loop()
        self._kept: deque[tuple[Any, asyncio.Future[None]]] = deque()
        call.wanted = partial(self._loop.call_soon_threadsafe, self._more)

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

    def _more(self) -> None:
        self._call.credit += 1
        if self._kept:
            item, future = self._kept.popleft()
            self._call.credit -= 1
            self._line.send(["item", self._call.number, item])
            if not future.done():
                future.set_result(None)
