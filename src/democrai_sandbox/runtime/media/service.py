"""Fetch, stream and proxy of external media for a subject.

This service of the runtime does not bypass the guard: it fetches only URLs that the subject itself may access, by its
rules or by approval, and runs no code of the subject.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.errors.media import MediaBusy, MediaTimeout
from democrai_sandbox.policy import InvalidInputError

from .authority import Authority, Judge
from .cache import MediaCache
from .cached import CachedFlow
from .flow import Parts, Wish
from .flowlog import FlowLog
from .headers import forwarded, proxied, request_headers
from .hops import read_url
from .running import MediaStream, Running, wait_for_place, wait_for_place_blocking
from .slots import Slots
from .values import Asker, MediaLimits, MediaResult

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from democrai_sandbox.runtime.shadows import Shadows

_METHODS = ("GET", "HEAD")
_KEY_BYTES = 32


class ProxyAnswer(NamedTuple):
    """Response of the host's own handler to a browser."""

    status: int
    headers: dict[str, str]
    body: MediaStream
    """Iterate over it, and close it when the browser disconnects."""


class Media:
    """The media service of a runtime. Its methods are for the host; guarded code uses ``MediaDoors``."""

    def __init__(
        self,
        judge: Judge,
        *,
        data_dir: str | None = None,
        limits: MediaLimits | None = None,
        tls: ssl.SSLContext | None = None,
        cache_key: bytes | None = None,
        log: FlowLog | None = None,
        shadows: Shadows | None = None,
    ) -> None:
        """Ask ``judge``, the access-policy service, about every URL that no rule of the subject covers.

        Without ``data_dir`` nothing is cached. Without a ``cache_key`` cached entries are valid only in this process.
        """
        self.limits = limits or MediaLimits()
        self._data_dir = data_dir
        self._key = cache_key or secrets.token_bytes(_KEY_BYTES)
        self._log = log or FlowLog()
        # Created here, so that the certificates are not read inside a guard.
        context = tls or ssl.create_default_context()
        self._parts = Parts(Authority(judge, self._log, shadows), self.limits, context, self._log)
        self._slots = Slots(self.limits)
        self._pool = ThreadPoolExecutor(self.limits.flows, thread_name_prefix="democrai-media")
        self.loop: asyncio.AbstractEventLoop | None = None
        """The host's loop, after ``open``."""
        self._running: dict[Running, str] = {}
        """Running fetches, with their subjects."""

    # ---- fetch, stream, proxy ----------------------------------------------------------------------------------------

    async def fetch(
        self,
        asker: Asker,
        url: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds what threads do as well
    ) -> MediaResult:
        """Return a complete response, also for error statuses. Raise a denial for a URL that is not permitted."""
        wish = self._wish(url, method, headers, (max_bytes, timeout), streamed=False)
        running = self._start(asker, wish, await self._place(asker))
        try:
            return await running.step(running.fetch_whole)
        finally:
            running.finish()

    def fetch_blocking(
        self,
        asker: Asker,
        url: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> MediaResult:
        """Return a complete response, for code in a separate thread."""
        wish = self._wish(url, method, headers, (max_bytes, timeout), streamed=False)
        running = self._start(asker, wish, self._place_blocking(asker))
        try:
            return running.step_blocking(running.fetch_whole)
        finally:
            running.finish()

    async def stream(
        self,
        asker: Asker,
        url: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - likewise
    ) -> MediaStream:
        """Return a response whose body arrives in parts. The timeout, at most an hour, covers the whole stream."""
        return await self._stream(asker, self._wish(url, method, headers, (max_bytes, timeout), streamed=True))

    def stream_blocking(
        self,
        asker: Asker,
        url: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        max_bytes: int | None = None,
        timeout: float | None = None,
    ) -> MediaStream:
        """Return a stream for code in a separate thread; its body is read with ``read_blocking``."""
        wish = self._wish(url, method, headers, (max_bytes, timeout), streamed=True)
        running = self._start(asker, wish, self._place_blocking(asker))
        try:
            head = running.step_blocking(running.flow.open)
        except BaseException:
            running.finish()
            raise
        return MediaStream(running, head, None)

    async def proxy(self, asker: Asker, url: str, request: Mapping[str, str], *, method: str = "GET") -> ProxyAnswer:
        """Return the response for a browser that asks the host for an external URL on behalf of a module.

        ``request`` are the browser's headers: those about ranges and conditions are forwarded, all others dropped.
        """
        wish = self._wish(url, method, forwarded(request), (None, None), streamed=True)
        stream = await self._stream(asker, wish)
        return ProxyAnswer(stream.status, proxied(stream.head), stream)

    # ---- lifecycle ---------------------------------------------------------------------------------------------------

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

    # ---- parts -------------------------------------------------------------------------------------------------------

    async def _stream(self, asker: Asker, wish: Wish) -> MediaStream:
        running = self._start(asker, wish, await self._place(asker))
        try:
            head = await running.step(running.flow.open)
        except BaseException:
            running.finish()
            raise
        return MediaStream(running, head, asyncio.get_running_loop())

    async def _place(self, asker: Asker) -> str:
        self._sweep()
        subject = str(asker.subject)
        await wait_for_place(self._slots, subject, self.limits.waiting_seconds)
        return subject

    def _place_blocking(self, asker: Asker) -> str:
        self._sweep()
        subject = str(asker.subject)
        wait_for_place_blocking(self._slots, subject, self.limits.waiting_seconds)
        return subject

    def _sweep(self) -> None:
        """End abandoned streams, which would occupy slots."""
        for running in tuple(self._running):
            if running.is_abandoned(self.limits.unread_seconds):
                running.finish()

    def _start(self, asker: Asker, wish: Wish, subject: str) -> Running:
        flow = CachedFlow(self._parts, asker, wish, self._cache_of(asker))
        running = Running(flow, self._pool, wish.seconds, self._ended)
        self._running[running] = subject
        self._log("begin", subject=subject, session=asker.session_key, method=wish.method, url=wish.hop.url)
        return running

    def _ended(self, running: Running) -> None:
        self._slots.release(self._running.pop(running))

    def _wish(
        self,
        url: str,
        method: str,
        headers: dict[str, str] | None,
        asked: tuple[int | None, float | None],
        *,
        streamed: bool,
    ) -> Wish:
        if method not in _METHODS:
            raise InvalidInputError.of(f"expected the method {' or '.join(_METHODS)}", pointer="/method")
        limits, (max_bytes, seconds) = self.limits, asked
        most_bytes = limits.stream_bytes if streamed else limits.fetch_bytes
        most_seconds = limits.stream_seconds if streamed else limits.fetch_seconds
        return Wish(
            read_url(url),
            method,
            request_headers({} if headers is None else headers),
            int(_at_most(max_bytes, most_bytes, "/max_bytes")),
            _at_most(seconds, most_seconds, "/timeout"),
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
