"""Cache lifetime of a response, from its headers."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_LIFETIME = 7 * 24 * 3600.0
"""Upper limit, independent of the server's headers."""
_DIRECTIVE = re.compile(r"([a-z-]+)(?:=\"?([0-9]{1,10})\"?)?", re.IGNORECASE)
_COMPLETE = 200


def lifetime(status: int, headers: Mapping[str, str]) -> float | None:
    """Return the seconds for which a response is fresh; None if it must not be cached.

    A response without a lifetime is cached only if it can be revalidated, and then is revalidated each time.
    """
    directives = _directives(headers.get("cache-control", ""))
    if status != _COMPLETE or "no-store" in directives or "*" in headers.get("vary", ""):
        return None
    seconds = _seconds(directives, headers)
    if seconds <= 0 and not ("etag" in headers or "last-modified" in headers):
        return None
    return seconds


def _seconds(directives: Mapping[str, str], headers: Mapping[str, str]) -> float:
    if "no-cache" in directives:
        return 0.0
    if "max-age" in directives:
        granted = float(directives["max-age"] or 0) - _number(headers.get("age", ""))
    else:
        granted = _until(headers)
    return min(max(granted, 0.0), LONGEST_LIFETIME)


def _directives(text: str) -> dict[str, str]:
    return {name.lower(): value for name, value in _DIRECTIVE.findall(text)}


def _number(text: str) -> float:
    return float(text) if re.fullmatch(r"[0-9]{1,10}", text) else 0.0


def _until(headers: Mapping[str, str]) -> float:
    """Return the seconds between the two dates of a response; 0 if one is missing or invalid."""
    try:
        end, begin = parsedate_to_datetime(headers["expires"]), parsedate_to_datetime(headers["date"])
        return (end - begin).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return 0.0
