"""Converters for ``type=`` of arguments: ids, texts, subjects, numbers and times."""

from __future__ import annotations

import argparse
import re
from types import MappingProxyType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_MOST = 100_000
_HOUR = 3_600_000
_ID = r"[0-9A-Za-z_-]{1,100}"
_LONG_TEXT = 500
SECONDS = MappingProxyType({"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800})
"""Seconds per unit of time."""
_SPAN = r"([0-9]{1,9})([smhdw])"
_LONGEST = 36525 * 86400
_EXAMPLES = "30m, 2h, 7d"


def an_id(text: str) -> str:
    """Return an id, unchanged."""
    if not re.fullmatch(_ID, text):
        raise _refused(text, "is not an id")
    return text


def a_text(text: str) -> str:
    """Return a short printable text."""
    if not text or len(text) > _LONG_TEXT or not text.isprintable():
        raise _refused(text, "is empty, too long, or contains non-printable characters")
    return text


def a_setting(text: str) -> tuple[str, str]:
    """Return the name and the value of a setting such as ``language=en``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise _refused(name, "is not NAME=VALUE")  # without the value, which may be secret
    return name, value


def written_value(text: str) -> Any:
    """Return the value of a setting: parsed JSON, or the text itself."""
    import json  # noqa: PLC0415 - not needed for --help

    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def a_subject(text: str) -> str:
    """Return a valid subject, unchanged."""
    from democrai_sandbox.policy import InvalidInputError, Subject  # noqa: PLC0415 - not needed for --help

    try:
        Subject.parse(text)
    except InvalidInputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def a_number(text: str) -> int:
    """Return a positive number."""
    return _number(text, _MOST)


def milliseconds(text: str) -> int:
    """Return a duration in milliseconds, up to an hour."""
    return _number(text, _HOUR)


def _number(text: str, most: int) -> int:
    if not text.isdecimal() or not text.isascii() or not 0 < int(text[:20]) <= most:
        raise _refused(text, f"is not a number from 1 to {most}")
    return int(text)


def seconds(text: str) -> float:
    """Return a duration in seconds, greater than zero."""
    found = float(text)
    if not 0 < found < float("inf"):
        raise ValueError(text)
    return found


def span(text: str) -> int:
    """Return the seconds of a duration such as ``2h``."""
    match = re.fullmatch(_SPAN, text)
    found = int(match[1]) * SECONDS[match[2]] if match else 0
    if not 0 < found <= _LONGEST:
        raise _refused(text, f"is not a duration; write {_EXAMPLES}")
    return found


def moment(text: str) -> str:
    """Return a time for the API, from an ISO time or a duration before now."""
    from datetime import UTC, datetime, timedelta  # noqa: PLC0415 - not needed for --help

    try:
        if re.fullmatch(_SPAN, text):
            return (datetime.now(UTC) - timedelta(seconds=span(text))).isoformat()
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError):
        raise _refused(
            text, f"is not a time; write 2026-01-31T12:00:00Z, or a duration before now: {_EXAMPLES}"
        ) from None


def _refused(text: str, why: str) -> argparse.ArgumentTypeError:
    from democrai_sandbox.cli.output import shortened  # noqa: PLC0415 - not needed for --help

    return argparse.ArgumentTypeError(f"{shortened(repr(text))} {why}")
