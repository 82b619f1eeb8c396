"""Times on the command line: how long, since when, and how long ago."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

from .output import shortened

_UNITS = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800})
_SPAN = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_LONGEST = 36525 * 86400
_EXAMPLES = "30m, 2h, 7d"


def span(text: str) -> int:
    """Return the seconds of something like ``2h``; for ``type=`` of an argument."""
    match = _SPAN.fullmatch(text)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"{shortened(repr(text))} is no length of time; write {_EXAMPLES}")
    return seconds


def moment(text: str) -> str:
    """Return a time as the API takes it: one that is written out, or so long ago; for ``type=`` of an argument."""
    try:
        found = datetime.now(UTC) - timedelta(seconds=span(text)) if _SPAN.fullmatch(text) else _read(text)
        return found.astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        message = f"{shortened(repr(text))} is no time; write 2026-01-31T12:00:00Z, or how long ago: {_EXAMPLES}"
        raise argparse.ArgumentTypeError(message) from None


def _read(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def when(text: str | None) -> str:
    """Return a time of the API for a person: to the second, in UTC; ``-`` for none."""
    if not text:
        return "-"
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(text: str | None, now: datetime | None = None) -> str:
    """Return how long ago a time of the API was, in its largest unit: ``5m``; ``-`` for none."""
    if not text:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()))
    for unit in ("d", "h", "m"):
        if seconds >= _UNITS[unit]:
            return f"{seconds // _UNITS[unit]}{unit}"
    return f"{seconds}s"
