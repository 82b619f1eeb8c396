"""How long an answer may be kept, by its own headers."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

LONGEST_LIFETIME = 7 * 24 * 3600.0
"""However long a server says."""
_DIRECTIVE = re.compile(r"([a-z-]+)(?:=\"?([0-9]{1,10})\"?)?", re.IGNORECASE)
_COMPLETE = 200


def lifetime(status: int, headers: Mapping[str, str]) -> float | None:
    """Return for how many seconds an answer is fresh; None when it is not to be kept at all.

    Without a lifetime of its own it is kept only if it can be asked about again, and then it is each time.
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
    """Return what lies between the two dates of an answer; nothing, when one is missing or is none."""
    try:
        end, begin = parsedate_to_datetime(headers["expires"]), parsedate_to_datetime(headers["date"])
        return (end - begin).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return 0.0
