"""Conversion of an extension's results to plain data, the same for every way to run it.

It runs inside the guard, as the subject, because methods of an enum, a record or a date may be code of the extension.
Only the copy that ``plain`` makes of the outcome leaves the guard; it has exact types.
"""

from __future__ import annotations

import sys
from dataclasses import fields, is_dataclass
from datetime import date, time, timedelta
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ResultInvalid
from democrai_sandbox.guard import plain
from democrai_sandbox.policy import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DEEPEST = 64
_MOST_VALUES = 1_000_000
"""The limit of ``plain``."""


def plain_result(value: Any) -> Any:
    """Return a result as plain data, or raise ``ResultInvalid`` with the location of the invalid value.

    Besides plain data: an ``Enum`` becomes its value; a dataclass or named tuple an object of its fields; a date, time
    or datetime its ISO 8601 text; a ``timedelta`` its seconds; a ``UUID``, ``Decimal`` or path its text. Tuples become
    lists.
    """
    try:
        try:
            return plain(value, lists=True)
        except InvalidInputError:
            return plain(_Conversion().of(value, 0), lists=True)
    except InvalidInputError as error:
        raise ResultInvalid.of(error.problems) from None


class _Conversion:
    """Converts one result. Unknown types stay as they are, so that ``plain`` refuses them with their location."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise InvalidInputError.of("more than a million values")
        kind = type(value)
        if depth > _DEEPEST or value is None or kind in (str, int, float, bool, bytes):
            return value
        if kind is dict:
            return self._members(value.items(), depth)
        if kind in (list, tuple):
            return [self.of(item, depth + 1) for item in value]
        return self._other(value, depth)

    def _other(self, value: Any, depth: int) -> Any:
        if isinstance(value, Enum):
            return self.of(value.value, depth + 1)
        if is_dataclass(value) and not isinstance(value, type):
            return self._members(((field.name, getattr(value, field.name)) for field in fields(value)), depth)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return self._members(zip(value._fields, value, strict=True), depth)
        return _scalar(value)

    def _members(self, pairs: Iterable[tuple[Any, Any]], depth: int) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        for name, inner in pairs:
            key = name if type(name) is str else self.of(name, depth + 1)
            if type(key) is not str:
                raise InvalidInputError.of(f"expected texts as keys, got {type(name).__name__}")
            if key in made:
                raise InvalidInputError.of(f"two keys become the same text: {key[:100]!r}")
            made[key] = self.of(inner, depth + 1)
        return made


def _scalar(value: Any) -> Any:
    if isinstance(value, date | time):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, PurePath) or any(isinstance(value, kind) for kind in _loaded_kinds()):
        return str(value)
    return value


def _loaded_kinds() -> Iterator[type]:
    """Yield the types whose modules are loaded. Without the module no such value can exist."""
    for module, name in (("uuid", "UUID"), ("decimal", "Decimal")):
        if module in sys.modules:
            yield getattr(sys.modules[module], name)
