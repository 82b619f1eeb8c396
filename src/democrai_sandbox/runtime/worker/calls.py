"""The calls that run in a worker: which one some code belongs to, whether it is cancelled, what it may stream."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .interface import NOBODY

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from democrai_sandbox.guard.views import RawView

# The number alone: guarded code can read the variable, and is to find nothing behind it.
_present: ContextVar[int] = ContextVar("democrai_call", default=0)


def present_number() -> int:
    """Return the number of the call that some code says it belongs to; 0 for none. The host checks it."""
    number = _present.get()
    return number if type(number) is int else 0


class StreamClosed(Exception):  # noqa: N818 - a signal, no error
    """Nobody wants the rest of a stream."""


class Call:
    """One call, from its frame to its reply."""

    cancelled = False
    task: asyncio.Task[Any] | None = None
    wanted: Callable[[], None] | None = None
    """Wakes whoever waits for credit."""

    def __init__(self, message: list[Any]) -> None:
        """Read the frame, which the host made."""
        _, self.number, self.kind, self.name, self.params, caller, ancestors, self.credit = message
        self.caller: tuple[str, ...] = tuple(caller) if caller else NOBODY
        self.ancestors: tuple[str, ...] = tuple(ancestors) if ancestors else ()


class Calls:
    """All calls that have begun and not ended. Used by all threads."""

    def __init__(self) -> None:
        """Begin with none."""
        self._running: dict[int, Call] = {}
        self._cancelled: set[int] = set()
        self._changing = threading.Lock()

    def begin(self, call: Call) -> None:
        """Take a call in; what this thread or task does from now on belongs to it."""
        with self._changing:
            self._running[call.number] = call
            call.cancelled = call.number in self._cancelled
        _present.set(call.number)

    def end(self, number: int) -> Call | None:
        """Let it go, and return it."""
        return self._running.pop(number, None)

    def get(self, number: int) -> Call | None:
        """Return a call that is running."""
        return self._running.get(number)

    def cancel(self, number: int) -> Call | None:
        """Mark a call as cancelled and return it; one that comes only later is kept from running."""
        with self._changing:
            call = self._running.get(number)
            if call is None:
                self._cancelled.add(number)
            else:
                call.cancelled = True
            return call

    def forget(self, number: int) -> None:
        """Forget a cancellation: the host knows that the call has ended."""
        with self._changing:
            self._cancelled.discard(number)

    def present(self, view: RawView | None) -> Call | None:
        """Return the call that the code asking belongs to; what it may have put in the variable cannot mislead."""
        call = self._running.get(_present.get())
        if call is not None and _is_for(call, view):
            return call
        return next((other for other in tuple(self._running.values()) if _is_for(other, view)), None)


def _is_for(call: Call, view: RawView | None) -> bool:
    if view is None:
        return False
    theirs = (view.user_id or "", view.organization_id or "", view.session_key or "")
    return theirs == call.caller[:3]


class Credit:
    """How many items of a stream the host is ready to take; for streams of plain generators, which wait for more."""

    def __init__(self, call: Call) -> None:
        """Begin with what the call came with."""
        self._call = call
        self._more = threading.Semaphore(call.credit)
        call.wanted = self._more.release

    def take(self) -> None:
        """Wait until one more item is wanted; ``StreamClosed`` when none will be."""
        self._more.acquire()
        if self._call.cancelled:
            raise StreamClosed
