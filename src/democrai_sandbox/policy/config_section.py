"""Reader of configuration objects that collects all problems with their locations."""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

from .problems import InvalidInputError, Problem, nearest, pointer_to
from .text import exact_str, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    _Value = TypeVar("_Value")
    _Default = TypeVar("_Default")

_NAMES: dict[type, str] = {dict: "an object", list: "a list", tuple: "a list"}
_LARGEST_SHOWN = 10**20
_QUERY = re.compile(r"(?<=[?#]).+", re.DOTALL)


class ConfigSection:
    """Configuration object. Each key is taken once. A missing object counts as empty."""

    def __init__(self, value: object, pointer: str, problems: list[Problem]) -> None:
        """Read an object; problems are appended to ``problems`` with pointers below ``pointer``."""
        self.pointer = pointer
        self.problems = problems
        self._known: list[str] = []
        self._values: Mapping[Any, Any] = value if isinstance(value, dict) else {}
        if value is not None and not isinstance(value, dict):
            problems.append(Problem(pointer, f"expected an object, got {described(value)}"))

    @property
    def names(self) -> tuple[str, ...]:
        """Keys of the object, for objects whose keys are user-defined names."""
        return tuple(self._values)

    def take(self, name: str, read: Callable[[object], _Value], *, default: _Default) -> _Value | _Default:
        """Return the value of a key as parsed by ``read``, or the default if it is missing or invalid."""
        self._known.append(name)
        if name not in self._values:
            return default
        place = pointer_to(self.pointer, name)
        try:
            return read(self._values[name])
        except InvalidInputError as error:
            self.problems += [problem.moved(place) for problem in error.problems]
        except ValueError as error:
            self.problems.append(Problem(place, str(error)))
        return default

    def inner(self, name: str) -> ConfigSection:
        """Return the object under a key."""
        return ConfigSection(self.raw(name), pointer_to(self.pointer, name), self.problems)

    def raw(self, name: str) -> Any:
        """Return the raw value of a key, for another reader; None if it is missing."""
        self._known.append(name)
        return self._values.get(name)

    def rest(self) -> dict[str, Any]:
        """Return all keys that have not been taken, for another reader."""
        found = {name: value for name, value in self._values.items() if name not in self._known}
        self._known += found
        return found

    def refuse_others(self) -> None:
        """Add a problem for each key that has not been taken."""
        for name in self._values:
            if name not in self._known:
                place = pointer_to(self.pointer, str(name))
                self.problems.append(Problem(place, f"unknown key {shown(name)}", nearest(str(name), self._known)))


def described(value: object) -> str:
    """Return a rejected value in recognizable form, without running its code or showing secret parts of a URL."""
    text = exact_str(value)
    if text is not None:
        return shown(_without_secrets(text))
    if value is None:
        return "nothing"
    if type(value) is bool:
        return "true" if value else "false"
    if (type(value) is int and abs(value) < _LARGEST_SHOWN) or type(value) is float:
        return repr(value)
    return _NAMES.get(type(value)) or shown(value)


def _without_secrets(text: str) -> str:
    """Return a text without credentials or the query of a URL, which may contain a token."""
    scheme, separator, rest = text.partition("://") if "://" in text else ("", "", text)
    user, at, place = rest.rpartition("@")
    hidden = f"***@{place}" if user and at else rest
    return f"{scheme}{separator}{_QUERY.sub('***', hidden) if separator else hidden}"


def switch(value: object) -> bool:
    """Parse a boolean."""
    if type(value) is not bool:
        raise ValueError(f"expected true or false, got {described(value)}")
    return value


def whole(lowest: int, highest: int, what: str = "a whole number") -> Callable[[object], int]:
    """Return a parser of integers within limits."""

    def read(value: object) -> int:
        if type(value) is not int or not lowest <= value <= highest:
            raise ValueError(f"expected {what} from {lowest} to {highest}, got {described(value)}")
        return value

    return read


def number(lowest: float, highest: float, what: str = "a number") -> Callable[[object], float]:
    """Return a parser of numbers within limits."""

    def read(value: object) -> float:
        is_number = type(value) in (int, float)
        if not is_number or not isfinite(value) or not lowest <= value <= highest:  # type: ignore[arg-type, operator]
            raise ValueError(f"expected {what} from {lowest:g} to {highest:g}, got {described(value)}")
        return float(value)  # type: ignore[arg-type]  # its type was asked for above

    return read


def absolute_path(value: object) -> str:
    """Parse an absolute path, which is returned unchanged."""
    text = exact_str(value)
    if text is not None and text[:1] in ("~", "$"):
        raise ValueError(f"{text[0]!r} is not expanded; write the absolute path instead of {shown(text)}")
    if text is None or "\0" in text or text[:1] != "/":
        raise ValueError(f"expected an absolute path, got {described(value)}")
    return text


def each(read: Callable[[object], _Value], what: str) -> Callable[[object], tuple[_Value, ...]]:
    """Return a parser of lists whose values are parsed by ``read``."""

    def read_all(value: object) -> tuple[_Value, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError(f"expected a list of {what}, got {described(value)}")  # noqa: TRY004 - a problem like others
        problems: list[Problem] = []
        entries = ConfigSection(dict(zip(map(str, range(len(value))), value, strict=True)), "", problems)
        found = [entries.take(str(index), read, default=None) for index in range(len(value))]
        if problems:
            raise InvalidInputError(problems)
        return tuple(found)  # type: ignore[arg-type]  # where one was refused, this is not reached

    return read_all
