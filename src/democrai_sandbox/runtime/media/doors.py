"""Media services for guarded code: plain data in, plain data or futures of it out.

On the host's loop a caller gets a bare future, never the task behind it, whose frames would expose objects of the host.
Everywhere else the call blocks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextvars import Context
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import RuntimeServiceFailed
from democrai_sandbox.errors.media import MediaClosed, MediaError
from democrai_sandbox.guard import door
from democrai_sandbox.policy import InvalidInputError, SandboxError
from democrai_sandbox.runtime.outcomes import VALUE, describe

from .values import Asker

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from .running import MediaStream
    from .service import Media

MEDIA = "media"
"""Outcome of an error of this package, followed by its code and its text."""
_OPTIONS = frozenset({"method", "headers", "max_bytes", "timeout"})
_log = logging.getLogger(__name__)


class _Lent(NamedTuple):
    """A stream, and the only caller that may read it."""

    owner: tuple[object, ...]
    stream: MediaStream


class MediaDoors:
    """The functions behind the service names of ``services``."""

    def __init__(self, media: Media) -> None:
        """Serve guarded code from this service."""
        self._media = media
        self._lent: dict[str, _Lent] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def services(self) -> dict[str, Callable[..., Any]]:
        """Return the service functions by name."""
        return {
            "media.fetch": self.fetch,
            "media.stream": self.stream,
            "media.read": self.read,
            "media.close": self.close,
        }

    def fetch(self, view: Any, url: Any, options: Any) -> Any:
        """Return a complete response."""
        asker, chosen = _asker(view), _options(options)

        async def later() -> Any:
            return tuple(await self._media.fetch(asker, url, **chosen))

        return self._answer(later, lambda: tuple(self._media.fetch_blocking(asker, url, **chosen)))

    def stream(self, view: Any, url: Any, options: Any) -> Any:
        """Return the head of a response, and the token for reading its body."""
        asker, chosen = _asker(view), _options(options)

        async def later() -> Any:
            return self._lend(asker, await self._media.stream(asker, url, **chosen))

        return self._answer(later, lambda: self._lend(asker, self._media.stream_blocking(asker, url, **chosen)))

    def read(self, view: Any, token: Any) -> Any:
        """Return the next part of a body."""
        stream = self._borrowed(_asker(view), token).stream
        return self._answer(stream.read, stream.read_blocking)

    def close(self, view: Any, token: Any) -> None:
        """End a stream; ignore one that has ended already."""
        try:
            lent = self._borrowed(_asker(view), token)
        except MediaClosed:
            return
        self._lent.pop(token, None)
        lent.stream.end()

    def _lend(self, asker: Asker, stream: MediaStream) -> tuple[Any, ...]:
        for ended in [token for token, lent in tuple(self._lent.items()) if lent.stream.closed]:
            self._lent.pop(ended, None)
        token = secrets.token_urlsafe(16)
        self._lent[token] = _Lent(asker.owner, stream)
        return (token, *stream.head)

    def _borrowed(self, asker: Asker, token: object) -> _Lent:
        lent = self._lent.get(token) if type(token) is str else None
        # The guard identifies the owner, so a token is useless to another subject.
        if lent is None or lent.owner != asker.owner:
            raise MediaClosed("unknown stream")
        return lent

    def _answer(self, later: Callable[[], Coroutine[Any, Any, Any]], now: Callable[[], Any]) -> Any:
        """Return a future on the host's loop. Any other loop is untrusted, because guarded code can make its own."""
        loop = self._media.loop
        if loop is None or asyncio._get_running_loop() is not loop:  # noqa: SLF001 - get_running_loop raises
            try:
                return (VALUE, now())
            except Exception as error:  # noqa: BLE001 - returned as plain data
                return _told(error)
        future: asyncio.Future[Any] = asyncio.Future(loop=loop)
        # Not through the loop's method, which uses a task factory that other code may have set.
        task = asyncio.Task(_settle(future, later), loop=loop, context=Context())
        self._tasks.add(task)  # the loop itself keeps only weak references
        task.add_done_callback(self._tasks.discard)
        self._watch(future, task, loop)
        return future

    @staticmethod
    def _watch(future: asyncio.Future[Any], task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        """Cancel the work when its future is canceled."""

        def look(_view: Any, *_: Any) -> None:
            if future.done() and not task.done():
                loop.call_soon_threadsafe(task.cancel, context=Context())

        # The caller can inspect and call the callbacks of its future: a ``Door`` exposes nothing, and this one does
        # nothing.
        future.add_done_callback(door(look))


def _asker(view: Any) -> Asker:
    if view is None:
        raise InvalidInputError.of("this code is not guarded: call the media service of the host directly")
    return Asker.of_view(view)


def _options(options: object) -> Mapping[str, Any]:
    if type(options) is not dict:
        raise InvalidInputError.of("expected a dict of options", pointer="/options")
    unknown = options.keys() - _OPTIONS
    if unknown:
        raise InvalidInputError.of(f"unknown options: {', '.join(sorted(unknown))}", pointer="/options")
    return options


async def _settle(future: asyncio.Future[Any], work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Do the work and set its outcome in the future."""
    try:
        outcome = (VALUE, await work())
    except Exception as error:  # noqa: BLE001 - returned as plain data
        outcome = _told(error)
    if not future.done():
        future.set_result(outcome)


def _told(error: Exception) -> tuple[Any, ...]:
    """Return an error as plain data; an unexpected one exposes nothing of the host."""
    if isinstance(error, MediaError):
        return (MEDIA, error.code, str(error))
    if isinstance(error, SandboxError):
        return describe(error)
    _log.error("media failed", exc_info=error)
    return describe(RuntimeServiceFailed("media failed in the runtime"))
