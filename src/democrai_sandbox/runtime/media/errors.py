"""Errors of external media. None of them is a denial, which is ``NetworkDenied``, as everywhere."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping


class MediaError(SandboxError):
    """A fetch failed."""

    code = "media_failed"


class MediaUnreachable(MediaError):  # noqa: N818 - it says what happened
    """No connection: the name, the address or the certificate is invalid."""

    code = "media_unreachable"


class MediaBroken(MediaError):  # noqa: N818 - it says what happened
    """The server's response is not valid HTTP, or ends before it is complete."""

    code = "media_broken"


class MediaTooLarge(MediaError):  # noqa: N818 - it says what happened
    """The body or the headers are larger than the limit."""

    code = "media_too_large"


class MediaTimeout(MediaError, TimeoutError):  # noqa: N818 - it says what happened
    """The whole fetch took too long, or no data came for too long."""

    code = "media_timeout"


class MediaRedirectRefused(MediaError):  # noqa: N818 - it says what happened
    """A redirect loops, exceeds the limit, leads from https to http, or has an invalid URL."""

    code = "media_redirect_refused"


class MediaBusy(MediaError):  # noqa: N818 - it says what happened
    """The subject has the maximum number of fetches, and none ended in time."""

    code = "media_busy"


class MediaClosed(MediaError):  # noqa: N818 - it says what happened
    """The stream is closed, or belongs to another caller."""

    code = "media_closed"


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
"""Errors by code, for rebuilding them on the other side of a guard."""
