"""What can go wrong with external media. None of these is a denial: that is ``NetworkDenied``, as everywhere."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping


class MediaError(SandboxError):
    """A fetch did not come to a good end."""

    code = "media_failed"


class MediaUnreachable(MediaError):  # noqa: N818 - it says what happened
    """No connection: the name, the address or the certificate is no good."""

    code = "media_unreachable"


class MediaBroken(MediaError):  # noqa: N818 - it says what happened
    """The server's answer is no HTTP, or ends before it is complete."""

    code = "media_broken"


class MediaTooLarge(MediaError):  # noqa: N818 - it says what happened
    """The body, or the headers before it, are larger than the limit."""

    code = "media_too_large"


class MediaTimeout(MediaError, TimeoutError):  # noqa: N818 - it says what happened
    """The whole took too long, or nothing came for too long."""

    code = "media_timeout"


class MediaRedirectRefused(MediaError):  # noqa: N818 - it says what happened
    """A redirect leads round in a circle, on for ever, from https to http, or to something that is no web address."""

    code = "media_redirect_refused"


class MediaBusy(MediaError):  # noqa: N818 - it says what happened
    """The subject has as many fetches under way as it may, and no place became free in time."""

    code = "media_busy"


class MediaClosed(MediaError):  # noqa: N818 - it says what happened
    """The stream is closed, or was never this caller's."""

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
"""The errors by their codes, to be rebuilt on the other side of a guard."""
