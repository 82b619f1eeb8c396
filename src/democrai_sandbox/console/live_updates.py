"""Event stream that notifies open pages of changes. Pages then fetch the changed data themselves."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations

from democrai_sandbox.errors import ExternalAccessCheckFailed, NotSignedIn

from .auth import person, person_if_any, sandbox_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from democrai_sandbox.host.sandbox import Sandbox

MOST_LISTENERS = 1000
POLL_SECONDS = 1.0
HEARTBEAT_SECONDS = 15.0
"""Seconds between keep-alive messages, because proxies close idle streams. Each one checks the session again."""
LONGEST_SECONDS = 900.0
"""Maximum duration of a stream; the browser then opens a new one."""

_MEDIA_TYPE = "text/event-stream"
_HEADERS = MappingProxyType({"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
_OVER = "event: over\ndata: signed out\n\n"

router = APIRouter()


class Pulse:
    """Poller that checks once a second for changes, for all listeners, while there is one."""

    def __init__(
        self, read: Callable[[], tuple[int, int]], closing: asyncio.Event, *, seconds: float = POLL_SECONDS
    ) -> None:
        """Take ``read``, which is called on threads and may fail, and ``closing``, which ends every stream."""
        self._read = read
        self._closing = closing
        self._seconds = seconds
        self._latest: tuple[int, int] | None = None
        self._listeners: set[asyncio.Event] = set()
        self._poller: asyncio.Task[None] | None = None

    @property
    def listeners(self) -> int:
        """Number of listeners."""
        return len(self._listeners)

    @property
    def has_room(self) -> bool:
        """Whether the maximum number of listeners is not reached."""
        return len(self._listeners) < MOST_LISTENERS

    async def changes(self, *, patience: float) -> AsyncGenerator[str]:
        """Yield the last known state, then each latest change without a queue; an empty text after an idle period."""
        changed = asyncio.Event()
        if self._latest is not None:
            changed.set()
        self._listeners.add(changed)
        try:
            if self._poller is None or self._poller.done():
                self._poller = asyncio.create_task(self._poll())
            while not self._closing.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), patience)
                said = changed.is_set() and self._latest is not None
                changed.clear()
                if not self._closing.is_set():
                    yield as_text(self._latest) if said else ""
        finally:
            self._listeners.discard(changed)

    async def _poll(self) -> None:
        while self._listeners and not self._closing.is_set():
            with suppress(ExternalAccessCheckFailed):  # the database is unreachable: pages stay unchanged
                found = await asyncio.to_thread(self._read)
                if found != self._latest:
                    self._latest = found
                    self._wake()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), self._seconds)
        self._latest = None
        self._wake()

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.set()


def as_text(pulse: tuple[int, int] | None) -> str:
    """Return a pulse as text for comparison."""
    return "" if pulse is None else ".".join(map(str, pulse))


def pulse_of(sandbox: Sandbox) -> str:
    """Return the current pulse for a new page."""
    return as_text(sandbox.access.store.pulse())


@router.get("/live")
async def live(request: Request) -> Response:
    """Stream changes to a page while its user is signed in.

    A signed-out user gets an event instead of a redirect, which scripts cannot see.
    """
    try:
        await run_in_threadpool(person, request)
    except NotSignedIn:
        return Response(_OVER, media_type=_MEDIA_TYPE, headers=_HEADERS)
    pulse = _pulse(request)
    if not pulse.has_room:
        return PlainTextResponse("too many pages are open", 503, {"Retry-After": "60"})
    return StreamingResponse(_events(request, pulse), media_type=_MEDIA_TYPE, headers=_HEADERS)


def _pulse(request: Request) -> Pulse:
    """Return the poller of this application."""
    state = request.app.state
    if getattr(state, "pulse", None) is None:
        sandbox = sandbox_of(request)
        state.pulse = Pulse(sandbox.access.store.pulse, sandbox.closing)
    found: Pulse = state.pulse
    return found


async def _events(request: Request, pulse: Pulse) -> AsyncIterator[str]:
    begun = looked = monotonic()
    yield "retry: 5000\n\n"
    async with aclosing(pulse.changes(patience=HEARTBEAT_SECONDS)) as changes:
        async for change in changes:
            now = monotonic()
            if now - looked >= HEARTBEAT_SECONDS:
                looked = now
                if not await run_in_threadpool(_is_signed_in, request):
                    yield _OVER
                    return
            if now - begun >= LONGEST_SECONDS:
                return
            yield f"event: pulse\ndata: {change}\n\n" if change else ": keep-alive\n\n"


def _is_signed_in(request: Request) -> bool:
    """Return whether the session is valid; if the database is unreachable, it stays valid until the next check."""
    try:
        return person_if_any(request) is not None
    except ExternalAccessCheckFailed:
        return True
