"""Times for people: when, and how long ago."""

from __future__ import annotations

from datetime import UTC, datetime

from .arguments.values import SECONDS


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
        if seconds >= SECONDS[unit]:
            return f"{seconds // SECONDS[unit]}{unit}"
    return f"{seconds}s"
