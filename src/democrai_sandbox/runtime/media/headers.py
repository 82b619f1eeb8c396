"""Headers that pass in both directions. All others are dropped, such as cookies, credentials and referrers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError, nearest, pointer_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .values import MediaHead

CONDITIONS = frozenset({"range", "if-range", "if-none-match", "if-modified-since"})
"""Headers of partial or conditional HTTP requests, whose responses are neither cached nor served from the cache."""
SENT = frozenset({"accept", *CONDITIONS})
"""Headers that a caller may add to an HTTP request."""
_DESCRIBING = frozenset(
    {
        "accept-ranges",
        "age",
        "cache-control",
        "content-encoding",
        "content-language",
        "content-length",
        "content-range",
        "content-type",
        "date",
        "etag",
        "expires",
        "last-modified",
        "retry-after",
        "vary",
    }
)
_PASSED_ON = _DESCRIBING - {"age", "cache-control", "date", "expires", "vary"}
_LONGEST_VALUE = 1024
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_ONE_RANGE = re.compile(r"bytes=(?:[0-9]{1,18}-[0-9]{0,18}|-[0-9]{1,18})")
_MEDIA_TYPE = re.compile(r"([a-z]+/[a-z0-9][a-z0-9!#$&^_.+-]*)((?:\s*;[\t\x20-\x7e]*)?)", re.IGNORECASE)
_SHOWN_KINDS = ("image/", "audio/", "video/")
# An image that can contain scripts: opened as a page, it would run them on the application's site.
_ACTIVE = frozenset({"image/svg+xml"})


def request_headers(given: object) -> dict[str, str]:
    """Return the caller's headers with names in lower case, or refuse headers that it may not set."""
    if type(given) is not dict:
        raise InvalidInputError.of(f"expected a dict, got {type(given).__name__}", pointer="/headers")
    headers: dict[str, str] = {}
    for name, value in given.items():
        pointer = pointer_to("/headers", str(name))
        if type(name) is not str or name.lower() not in SENT:
            message = f"this header is not allowed in a media request: {name!r}"
            raise InvalidInputError.of(message, pointer=pointer, suggestion=nearest(str(name), SENT))
        if type(value) is not str or len(value) > _LONGEST_VALUE or not _VALUE.fullmatch(value):
            raise InvalidInputError.of(f"expected at most {_LONGEST_VALUE} printable ASCII characters", pointer=pointer)
        headers[name.lower()] = value.strip()
    if "range" in headers and not _ONE_RANGE.fullmatch(headers["range"]):
        raise InvalidInputError.of("expected one range, as in 'bytes=0-499'", pointer="/headers/range")
    return headers


def forwarded(given: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a browser's HTTP request to forward to the server; drop malformed ones."""
    kept = {}
    for name, value in given.items():
        lowered = name.lower()
        fits = lowered in SENT and len(value) <= _LONGEST_VALUE and _VALUE.fullmatch(value) is not None
        if fits and (lowered != "range" or _ONE_RANGE.fullmatch(value.strip())):
            kept[lowered] = value.strip()
    if "range" not in kept:
        kept.pop("if-range", None)
    return kept


def describing(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the headers of a response that describe the content, with names in lower case."""
    kept: dict[str, str] = {}
    for name, value in headers:
        text = value.strip()
        if name.lower() in _DESCRIBING and len(text) <= _LONGEST_VALUE and _VALUE.fullmatch(text):
            kept.setdefault(name.lower(), text)
    if not kept.get("content-length", "0").isdecimal():
        del kept["content-length"]
    return kept


def proxied(head: MediaHead) -> dict[str, str]:
    """Return the headers with which a host passes a response on to a browser, on its own site.

    The content is untrusted there: its type is not guessed, it runs no scripts, and only images, audio and video are
    displayed. Browsers revalidate it each time, so that a revocation takes effect.
    """
    headers = {name: value for name, value in head.headers.items() if name in _PASSED_ON}
    kind = _media_type(headers.get("content-type", ""))
    headers["content-type"] = kind
    plain = kind.partition(";")[0].lower()
    if not plain.startswith(_SHOWN_KINDS) or plain in _ACTIVE:
        headers["content-disposition"] = "attachment"
    headers["x-content-type-options"] = "nosniff"
    headers["content-security-policy"] = "default-src 'none'; sandbox"
    headers["cross-origin-resource-policy"] = "same-origin"
    headers["referrer-policy"] = "no-referrer"
    kept = head.session_only or "no-store" in head.headers.get("cache-control", "").lower()
    headers["cache-control"] = "no-store" if kept else "private, no-cache"
    return headers


def _media_type(text: str) -> str:
    return text if _MEDIA_TYPE.fullmatch(text) else "application/octet-stream"
