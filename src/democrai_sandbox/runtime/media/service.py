"""Fetch, stream and proxy of external media for a subject, and the services for guarded code."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, Unpack, cast

from democrai_sandbox.errors import ExternalAccessCheckFailed, RuntimeServiceFailed
from democrai_sandbox.errors.services import MediaBusy, MediaClosed, MediaError, MediaTimeout
from democrai_sandbox.guard import door
from democrai_sandbox.policy import InvalidInputError, SandboxError
from democrai_sandbox.runtime.calls.outcome import VALUE, describe

from .cache import CachedFetch, MediaCache
from .fetch import FetchJob, FetchOptions, FetchParts, FetchSlots, FetchStream, MediaAuthority, MediaFlowLog
from .http_request import forwarded, proxied, read_url, request_headers
from .values import Asker, MediaLimits, MediaResult

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from democrai_sandbox.access.checks import AccessService
    from democrai_sandbox.runtime.extensions.shadow_runs import ShadowRuns

_METHODS = ("GET", "HEAD")
_KEY_BYTES = 32


class MediaOptions(TypedDict, total=False):
    """Options of a fetch: limits may be lower than those of the host, not higher."""

    method: str
    headers: dict[str, str] | None
    max_bytes: int | None
    timeout: float | None


class ProxyAnswer(NamedTuple):
    """Response of the host's own handler to a browser."""

    status: int
    headers: dict[str, str]
    body: FetchStream
    """Iterate over it, and close it when the browser disconnects."""


class Media:
    """The media service of a runtime. Its methods are for the host; guarded code uses ``MediaServices``.

    This service does not bypass the guard: it fetches only URLs that the subject itself may access. On the host's loop
    a caller gets a bare future, never the task behind it, whose frames would expose objects of the host; elsewhere it
    blocks.
    """

    def __init__(
        self,
        judge: AccessService,
        *,
        data_dir: str | None = None,
        limits: MediaLimits | None = None,
        tls: ssl.SSLContext | None = None,
        cache_key: bytes | None = None,
        shadows: ShadowRuns | None = None,
    ) -> None:
        """Ask ``judge``, the access-policy service, about every URL that no rule of the subject covers.

        Without ``data_dir`` nothing is cached. Without a ``cache_key`` cached entries are valid only in this process.
        """
        self.limits = limits or MediaLimits()
        self._data_dir = data_dir
        self._key = cache_key or secrets.token_bytes(_KEY_BYTES)
        self._log = MediaFlowLog()
        # Created here, so that the certificates are not read inside a guard.
        context = tls or ssl.create_default_context()
        self._parts = FetchParts(MediaAuthority(judge, self._log, shadows), self.limits, context, self._log)
        self._slots = FetchSlots(self.limits)
        self._pool = ThreadPoolExecutor(self.limits.flows, thread_name_prefix="democrai-media")
        self.loop: asyncio.AbstractEventLoop | None = None
        """The host's loop, after ``open``."""
        self._running: dict[FetchJob, str] = {}
        """Running fetches, with their subjects."""

    async def fetch(self, asker: Asker, url: str, **options: Unpack[MediaOptions]) -> MediaResult:
        """Return a complete response, also for error statuses. Raise a denial for a URL that is not permitted."""
        running = await self._begin(asker, self._wish(url, streamed=False, **options))
        try:
            return await running.step(running.fetch_whole)
        finally:
            running.finish()

    def fetch_blocking(self, asker: Asker, url: str, **options: Unpack[MediaOptions]) -> MediaResult:
        """Return a complete response, for code in a separate thread."""
        running = self._begin_blocking(asker, self._wish(url, streamed=False, **options))
        try:
            return running.step_blocking(running.fetch_whole)
        finally:
            running.finish()

    async def stream(self, asker: Asker, url: str, **options: Unpack[MediaOptions]) -> FetchStream:
        """Return a response whose body arrives in parts. The timeout, at most an hour, covers the whole stream."""
        return await self._stream(asker, self._wish(url, streamed=True, **options))

    def stream_blocking(self, asker: Asker, url: str, **options: Unpack[MediaOptions]) -> FetchStream:
        """Return a stream for code in a separate thread; its body is read with ``read_blocking``."""
        running = self._begin_blocking(asker, self._wish(url, streamed=True, **options))
        with running.ending_on_error():
            return FetchStream(running, running.step_blocking(running.flow.open), None)

    async def proxy(self, asker: Asker, url: str, request: Mapping[str, str], *, method: str = "GET") -> ProxyAnswer:
        """Return the response for a browser that asks the host for an external URL on behalf of a module.

        ``request`` are the browser's headers: those about ranges and conditions are forwarded, all others dropped.
        """
        wish = self._wish(url, method=method, headers=forwarded(request), streamed=True)
        stream = await self._stream(asker, wish)
        return ProxyAnswer(stream.status, proxied(stream.head), stream)

    def open(self) -> None:
        """Answer guarded code on the running loop, which is the host's, without blocking it."""
        self.loop = asyncio.get_running_loop()

    @property
    def under_way(self) -> int:
        """Number of running fetches, including those whose thread still waits for a DNS lookup."""
        return self._slots.under_way

    def close(self) -> None:
        """End all running fetches."""
        for running in tuple(self._running):
            running.finish()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _stream(self, asker: Asker, wish: FetchOptions) -> FetchStream:
        running = await self._begin(asker, wish)
        with running.ending_on_error():
            return FetchStream(running, await running.step(running.flow.open), asyncio.get_running_loop())

    async def _begin(self, asker: Asker, wish: FetchOptions) -> FetchJob:
        self._sweep()
        await self._slots.wait(str(asker.subject))
        return self._start(asker, wish)

    def _begin_blocking(self, asker: Asker, wish: FetchOptions) -> FetchJob:
        self._sweep()
        self._slots.wait_blocking(str(asker.subject))
        return self._start(asker, wish)

    def _sweep(self) -> None:
        """End abandoned streams, which would occupy slots."""
        for running in tuple(self._running):
            if running.is_abandoned(self.limits.unread_seconds):
                running.finish()

    def _start(self, asker: Asker, wish: FetchOptions) -> FetchJob:
        subject = str(asker.subject)
        flow = CachedFetch(self._parts, asker, wish, self._cache_of(asker))
        running = FetchJob(flow, self._pool, wish.seconds, self._ended)
        self._running[running] = subject
        self._log("begin", subject=subject, session=asker.session_key, method=wish.method, url=wish.hop.url)
        return running

    def _ended(self, running: FetchJob) -> None:
        self._slots.release(self._running.pop(running))

    def _wish(
        self,
        url: str,
        *,
        streamed: bool,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> FetchOptions:
        if method not in _METHODS:
            raise InvalidInputError.of(f"expected the method {' or '.join(_METHODS)}", pointer="/method")
        limits = self.limits
        most_bytes = limits.stream_bytes if streamed else limits.fetch_bytes
        most_seconds = limits.stream_seconds if streamed else limits.fetch_seconds
        return FetchOptions(
            read_url(url),
            method,
            request_headers({} if headers is None else headers),
            int(_at_most(max_bytes, most_bytes, "/max_bytes")),
            _at_most(timeout, most_seconds, "/timeout"),
        )

    def _cache_of(self, asker: Asker) -> MediaCache | None:
        """Return the cache of the module in the call chain; None for a subject without a module."""
        name = asker.module
        if self._data_dir is None or not self.limits.cache_bytes or name is None:
            return None
        if "/" in name or name in {".", ".."}:
            return None
        home = str(Path(self._data_dir, "modules", name))
        limits = self.limits
        return MediaCache(home, name, self._key, most_bytes=limits.cache_bytes, entry_bytes=limits.cached_bytes)


def status_of(error: Exception) -> int:
    """Return the HTTP status with which a proxy reports an error to a browser."""
    if isinstance(error, PermissionError):
        return 403
    if isinstance(error, InvalidInputError):
        return 400
    if isinstance(error, MediaTimeout):
        return 504
    return 503 if isinstance(error, MediaBusy | ExternalAccessCheckFailed) else 502


def _at_most(asked: float | None, most: float, pointer: str) -> float:
    if asked is None:
        return most
    if type(asked) not in (int, float) or not asked > 0:
        raise InvalidInputError.of("expected a positive number", pointer=pointer)
    return min(asked, most)


MEDIA = "media"
"""Outcome of an error of this package, followed by its code and its text."""
_log = logging.getLogger(__name__)


class MediaServices:
    """The functions behind the service names of ``services``."""

    def __init__(self, media: Media) -> None:
        self._media = media
        self._streams: dict[str, tuple[tuple[object, ...], FetchStream]] = {}
        """By token, with the only caller that may read each."""
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
            return self._open_stream(asker, await self._media.stream(asker, url, **chosen))

        return self._answer(later, lambda: self._open_stream(asker, self._media.stream_blocking(asker, url, **chosen)))

    def read(self, view: Any, token: Any) -> Any:
        """Return the next part of a body."""
        stream = self._opened(_asker(view), token)
        return self._answer(stream.read, stream.read_blocking)

    def close(self, view: Any, token: Any) -> None:
        """End a stream; ignore one that has ended already."""
        try:
            stream = self._opened(_asker(view), token)
        except MediaClosed:
            return
        self._streams.pop(token, None)
        stream.end()

    def _open_stream(self, asker: Asker, stream: FetchStream) -> tuple[Any, ...]:
        for ended in [token for token, (_, other) in tuple(self._streams.items()) if other.closed]:
            self._streams.pop(ended, None)
        token = secrets.token_urlsafe(16)
        self._streams[token] = (asker.owner, stream)
        return (token, *stream.head)

    def _opened(self, asker: Asker, token: object) -> FetchStream:
        owner, stream = self._streams.get(token, (None, None)) if type(token) is str else (None, None)
        # The guard identifies the owner, so a token is useless to another subject.
        if stream is None or owner != asker.owner:
            raise MediaClosed("unknown stream")
        return stream

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


def _options(options: object) -> MediaOptions:
    if type(options) is not dict:
        raise InvalidInputError.of("expected a dict of options", pointer="/options")
    unknown = options.keys() - MediaOptions.__annotations__.keys()
    if unknown:
        raise InvalidInputError.of(f"unknown options: {', '.join(sorted(unknown))}", pointer="/options")
    return cast("MediaOptions", options)


async def _settle(future: asyncio.Future[Any], work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
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
