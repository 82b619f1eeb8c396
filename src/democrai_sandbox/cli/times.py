"""Readable times and ages."""

from __future__ import annotations

from datetime import UTC, datetime

from .arguments.values import SECONDS


def when(text: str | None) -> str:
    """Return a time of the API to the second, in UTC; ``-`` for None."""
    if not text:
        return "-"
    return datetime.fromisoformat(text).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ago(text: str | None, now: datetime | None = None) -> str:
    """Return the age of a time of the API in its largest unit, such as ``5m``; ``-`` for None."""
    if not text:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - datetime.fromisoformat(text)).total_seconds()))
    for unit in ("d", "h", "m"):
        if seconds >= SECONDS[unit]:
            return f"{seconds // SECONDS[unit]}{unit}"
    return f"{seconds}s"
