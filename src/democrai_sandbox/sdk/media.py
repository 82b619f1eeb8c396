"""External media for extension code: images, audio, video and files on other servers.

The runtime fetches them, under the rules and approvals of the calling subject. ``NetworkDenied`` means that a URL is
locked, and names the pending request; a ``MediaError`` is any other failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from democrai_sandbox.errors.services import (
    MEDIA_ERRORS,
    MediaBroken,
    MediaBusy,
    MediaClosed,
    MediaError,
    MediaRedirectRefused,
    MediaTimeout,
    MediaTooLarge,
    MediaUnreachable,
)
from democrai_sandbox.runtime.calls.outcome import release
from democrai_sandbox.runtime.media.values import MediaResult
from democrai_sandbox.runtime.sdk_services import call, later, now

if TYPE_CHECKING:
    from collections.abc import Mapping

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


async def fetch(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - the runtime enforces it
) -> MediaResult:
    """Return the complete response of a URL, also for error statuses.

    ``headers`` may contain Accept, Range, If-Range, If-None-Match and If-Modified-Since. ``max_bytes`` and ``timeout``
    can lower the limits of the host.
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
    """Return the complete response of a URL, and block until it arrives, for synchronous functions."""
    answer = call("media.fetch", url, _options(method, headers, max_bytes, timeout))
    return MediaResult(*_released(now(answer, "await sdk.media.fetch(...) instead")))


async def stream(
    url: str,
    *,
    method: str = "GET",
    range: str | None = None,  # noqa: A002 - it is the name of the header
    headers: Mapping[str, str] | None = None,
    max_bytes: int | None = None,
    timeout: float | None = None,  # noqa: ASYNC109 - likewise
) -> MediaStream:
    """Return the response of a URL in parts, as they arrive. The stream is an asynchronous context manager.

    ``range`` is one range, as in ``bytes=0-499``; a server that supports ranges answers with the status 206.
    """
    asked = dict(headers or {})
    if range is not None:
        asked["range"] = range
    answer = await _answer(call("media.stream", url, _options(method, asked, max_bytes, timeout)))
    return MediaStream(*answer[:4])


class MediaStream:
    """A response whose body arrives in parts."""

    def __init__(self, token: str, status: int, headers: dict[str, str], url: str) -> None:
        self._token = token
        self.status = status
        self.headers = headers
        self.url = url

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        data: bytes = await _answer(call("media.read", self._token))
        return data

    async def aclose(self) -> None:
        """End the stream and close its connection."""
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
    return _released(await later(given))


def _released(outcome: Any) -> Any:
    if outcome[0] == "media":
        _, code, message = outcome
        raise MEDIA_ERRORS[code](message)
    return release(outcome)
