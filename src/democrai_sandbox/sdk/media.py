"""External media for extension code: pictures, sounds, films and files that lie elsewhere.

The runtime fetches them, under the rules and approvals of the subject that asks. ``NetworkDenied`` says that a URL is
locked, and which request waits for approval; a ``MediaError`` says what else went wrong.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import GuardUsageError
from democrai_sandbox.runtime.doors import call
from democrai_sandbox.runtime.media.errors import (
    BY_CODE,
    MediaBroken,
    MediaBusy,
    MediaClosed,
    MediaError,
    MediaRedirectRefused,
    MediaTimeout,
    MediaTooLarge,
    MediaUnreachable,
)
from democrai_sandbox.runtime.outcomes import release

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

__all__ = [
    "MediaBroken",
    "MediaBusy",
    "MediaClosed",
    "MediaError",
    "MediaRedirectRefused",
    "MediaResult",
    "MediaStream",
    "MediaTimeout",
    "MediaTooLarge",
    "MediaUnreachable",
    "fetch",
    "fetch_blocking",
    "stream",
]


class MediaResult(NamedTuple):
    """An answer as a whole."""

    status: int
    headers: dict[str, str]
    """Those that describe the content, with names in lower case."""
    body: bytes
    url: str
    """Where it came from in the end, after redirects."""
    from_cache: bool


async def fetch(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - it is the runtime that keeps to it
) -> MediaResult:
    """Return what lies at a URL, as a whole. Statuses of failure are results too.

    ``headers`` may have Accept, Range, If-Range, If-None-Match and If-Modified-Since. ``max_bytes`` and ``timeout`` ask
    for less than the host allows.
    """
    return MediaResult(*await _answer(call("media.fetch", url, _options(method, headers, max_bytes, timeout))))


def fetch_blocking(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
    timeout: float | None = None,
) -> MediaResult:
    """Do the same and wait for it: for functions that are not asynchronous."""
    return MediaResult(*_waited(call("media.fetch", url, _options(method, headers, max_bytes, timeout))))


async def stream(
    url: str,
    *,
    method: str = "GET",
    range: str | None = None,  # noqa: A002 - it is the name of the header
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - likewise
) -> MediaStream:
    """Return what lies at a URL in parts, as they come. The stream is an asynchronous context manager.

    ``range`` is one range, as in ``bytes=0-499``; what a server that knows ranges then answers has the status 206.
    """
    asked = dict(headers or {})
    if range is not None:
        asked["range"] = range
    answer = await _answer(call("media.stream", url, _options(method, asked, max_bytes, timeout)))
    return MediaStream(*answer[:4])


class MediaStream:
    """An answer whose body comes in parts."""

    def __init__(self, token: str, status: int, headers: dict[str, str], url: str) -> None:
        """Take what the runtime handed out."""
        self._token = token
        self.status = status
        self.headers = headers
        self.url = url

    async def read(self) -> bytes:
        """Return the next part of the body; nothing at its end."""
        data: bytes = await _answer(call("media.read", self._token))
        return data

    async def aclose(self) -> None:
        """End it; the connection goes with it."""
        call("media.close", self._token)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def _options(
    method: str, headers: Mapping[str, str] | None, max_bytes: int | None, seconds: float | None
) -> dict[str, Any]:
    return {"method": method, "headers": dict(headers or {}), "max_bytes": max_bytes, "timeout": seconds}


async def _answer(given: Any) -> Any:
    """Return what the runtime answered: at once, or as a future."""
    return _released(await given if asyncio.isfuture(given) else given)


def _waited(given: Any) -> Any:
    """Return what the runtime answered after waiting; a worker process tells of that in a future that is done."""
    if not asyncio.isfuture(given):
        return _released(given)
    if given.done():
        return _released(given.result())
    given.cancel()
    raise GuardUsageError("this would block the event loop: await sdk.media.fetch(...) instead")


def _released(outcome: Any) -> Any:
    if outcome[0] == "media":
        _, code, message = outcome
        raise BY_CODE[code](message)
    return release(outcome)
