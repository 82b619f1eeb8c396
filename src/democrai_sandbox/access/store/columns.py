"""Column types with the same meaning in both databases: any text, and times as microseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, Text, TypeDecorator

if TYPE_CHECKING:
    from sqlalchemy import Dialect

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

MARK = "\x10"
"""Prefix of the hexadecimal code of a character that cannot be stored directly. Occurs only in stored texts."""

_UNSTORABLE = re.compile("[\0\x10\ud800-\udfff]")
_MARKED = re.compile("\x10([0-9a-f]{4})")


def to_micros(moment: datetime) -> int:
    """Return an aware time as microseconds since the epoch; exact, unlike float seconds."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the time in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def to_stored(text: str) -> str:
    """Return a text that both databases can store.

    File names can contain bytes that are not UTF-8, which Python represents as lone surrogates, and PostgreSQL rejects
    NUL. Such characters are stored as a rare control character and four hexadecimal digits.
    """
    return _UNSTORABLE.sub(lambda found: f"{MARK}{ord(found.group()):04x}", text)


def from_stored(text: str) -> str:
    """Return the original of a stored text."""
    if MARK not in text:
        return text
    return _MARKED.sub(lambda found: chr(int(found.group(1), 16)), text)


class AnyText(TypeDecorator[str]):
    """Text from outside, stored without loss."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        """Encode for the database."""
        return None if value is None else to_stored(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002 - the same
        """Decode from the database."""
        return None if value is None else from_stored(value)


class Moment(TypeDecorator[datetime]):
    """Aware time, stored as an integer."""

    impl = BigInteger().with_variant(Integer(), "sqlite")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:  # noqa: ARG002 - the same
        """Encode for the database."""
        return None if value is None else to_micros(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the same
        """Decode from the database."""
        return None if value is None else from_micros(value)


def big_integer() -> Any:
    """Return the type of 64-bit counters, with the name that SQLite's strict tables know."""
    return BigInteger().with_variant(Integer(), "sqlite")
