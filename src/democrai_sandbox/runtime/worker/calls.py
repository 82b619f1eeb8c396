"""Running calls of a worker: which call some code belongs to, cancellation, and stream credit."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .interface import NOBODY

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from democrai_sandbox.guard.views import RawView

# Only the number: guarded code can read the variable, so it must not reference an object.
_present: ContextVar[int] = ContextVar("democrai_call", default=0)


def present_number() -> int:
    """Return the call number that the running code claims; 0 for none. The host verifies it."""
    number = _present.get()
    return number if type(number) is int else 0


class StreamClosed(Exception):  # noqa: N818 - a signal, not an error
    """Signal that the rest of a stream is not wanted."""


class Call:
    """One call, from its frame to its reply."""

    cancelled = False
    task: asyncio.Task[Any] | None = None
    wanted: Callable[[], None] | None = None
    """Wakes the generator that waits for credit."""

    def __init__(self, message: list[Any]) -> None:
        """Read the frame, which the host made."""
        _, self.number, self.kind, self.name, self.params, caller, ancestors, self.credit = message
        self.caller: tuple[str, ...] = tuple(caller) if caller else NOBODY
        self.ancestors: tuple[str, ...] = tuple(ancestors) if ancestors else ()


class Calls:
    """All running calls. Used by all threads."""

    def __init__(self) -> None:
        self._running: dict[int, Call] = {}
        self._cancelled: set[int] = set()
        self._changing = threading.Lock()

    def begin(self, call: Call) -> None:
        """Add a call, and attribute the current thread or task to it."""
        with self._changing:
            self._running[call.number] = call
            call.cancelled = call.number in self._cancelled
        _present.set(call.number)

    def end(self, number: int) -> Call | None:
        """Remove and return a call."""
        return self._running.pop(number, None)

    def get(self, number: int) -> Call | None:
        """Return a running call."""
        return self._running.get(number)

    def cancel(self, number: int) -> Call | None:
        """Mark a call as canceled and return it; a call that arrives later does not run."""
        with self._changing:
            call = self._running.get(number)
            if call is None:
                self._cancelled.add(number)
            else:
                call.cancelled = True
            return call

    def forget(self, number: int) -> None:
        """Remove a cancellation, because the host knows that the call has ended."""
        with self._changing:
            self._cancelled.discard(number)

    def present(self, view: RawView | None) -> Call | None:
        """Return the call of the asking code, matched by identity, because the code can change the variable."""
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
    """Number of stream items that the host accepts; a plain generator waits here for more."""

    def __init__(self, call: Call) -> None:
        """Start with the credit of the call."""
        self._call = call
        self._more = threading.Semaphore(call.credit)
        call.wanted = self._more.release

    def take(self) -> None:
        """Wait until one more item is wanted; raise ``StreamClosed`` if the call is canceled."""
        self._more.acquire()
        if self._call.cancelled:
            raise StreamClosed
