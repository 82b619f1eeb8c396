"""Errors of external media. A denial is ``NetworkDenied``."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.guidance import Guidance

if TYPE_CHECKING:
    from collections.abc import Mapping


class MediaError(SandboxError):
    """A fetch of external media failed.

    Base class of the media errors; catch it to handle all of them. A refused address is ``sandbox_network_denied``.
    """

    code = "media_failed"
    guidance = Guidance(
        cause="The site, the connection or a limit; the subclass and its code say which.",
        fix="Look up the code of the subclass. Retry `media_unreachable`, `media_broken` and `media_timeout` later.",
        example="""\
try:
    await sdk.media.fetch(url)
except MediaError as error:
    print(error.code)
-> media_timeout""",
        see=("media.md",),
    )


class MediaUnreachable(MediaError):
    """The site cannot be reached.

    No connection was made, so nothing was sent.
    """

    code = "media_unreachable"
    guidance = Guidance(
        cause="The name does not resolve, the server is down, or its certificate is invalid.",
        fix="Check the URL in a browser, then retry.",
        example="""\
await sdk.media.fetch("https://expired.example.com/logo.png")
-> MediaUnreachable: expired.example.com:443 cannot be reached: certificate has expired""",
        see=("media.md",),
    )


class MediaBroken(MediaError):
    """The response is not valid HTTP or is incomplete.

    The data received so far was discarded.
    """

    code = "media_broken"
    guidance = Guidance(
        cause="The server or a proxy sent malformed HTTP, or closed the connection early.",
        fix="Retry. If it fails again, check the server.",
        example="""\
The server announces Content-Length: 1000 and closes the connection after 400 bytes:
-> MediaBroken""",
        see=("media.md",),
    )


class MediaTooLarge(MediaError):
    """The response is larger than the limit.

    The fetch stopped at the limit, and the data was discarded.
    """

    code = "media_too_large"
    guidance = Guidance(
        cause="The body exceeds `max_bytes` or the limit of the host, or the headers exceed theirs.",
        fix="Raise `max_bytes`, request a range, or stream the body.",
        example="""\
await sdk.media.fetch(url, max_bytes=1000)      # the image has 48 kB
-> MediaTooLarge: the body is larger than 1000 bytes""",
        see=("media.md",),
    )


class MediaTimeout(MediaError, TimeoutError):
    """The fetch exceeded its timeout.

    Either the whole fetch took too long, or no data arrived for too long.
    """

    code = "media_timeout"
    guidance = Guidance(
        cause="The server is slow, or streams without an end.",
        fix="Retry, request a range, or stream the body.",
        example="""\
await sdk.media.fetch("https://radio.example.com/live.mp3")      # never ends
-> MediaTimeout: the fetch took too long""",
        see=("media.md",),
    )


class MediaRedirectRefused(MediaError):
    """A redirect was not followed.

    The first response was a redirect; the address after it was not contacted.
    """

    code = "media_redirect_refused"
    guidance = Guidance(
        cause=(
            "The redirects form a loop or exceed the maximum, change from `https` to `http`, or name an address "
            "that is not HTTP."
        ),
        fix="Use the final address of the content.",
        example="""\
https://example.com/logo redirects to http://example.com/logo.png:
-> MediaRedirectRefused""",
        see=("media.md",),
    )


class MediaBusy(MediaError):
    """The subject has too many fetches running.

    This fetch did not start: no slot became free in time.
    """

    code = "media_busy"
    guidance = Guidance(
        cause="Fetches start faster than servers answer, or streams stay open.",
        fix="Wait for running fetches, and close streams.",
        example="""\
await asyncio.gather(*(sdk.media.fetch(url) for url in a_thousand_urls))
-> MediaBusy: module:gallery has too many fetches under way""",
        see=("media.md",),
    )


class MediaClosed(MediaError):
    """The stream is closed.

    No more data can be read from it.
    """

    code = "media_closed"
    guidance = Guidance(
        cause=(
            "The stream is used after its `async with` block, after its end, or by another extension than the one "
            "that opened it."
        ),
        fix="Open a new stream.",
        example="""\
async with await sdk.media.stream(url) as stream:
    pass
await stream.read()
-> MediaClosed""",
        see=("media.md",),
    )


BY_CODE: Mapping[str, type[MediaError]] = MappingProxyType(
    {
        kind.code: kind
        for kind in (
            MediaError,
            MediaUnreachable,
            MediaBroken,
            MediaTooLarge,
            MediaTimeout,
            MediaRedirectRefused,
            MediaBusy,
            MediaClosed,
        )
    }
)
"""The errors by code, to rebuild them across a guard."""
