"""Text from outside: exact strings, forbidden characters, safe display."""

from __future__ import annotations

import re
import unicodedata
from typing import cast

_ASCII_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ASCII_CONTROL_OR_SPACE = re.compile(r"[\x00-\x20\x7f]")
_CONTROL = frozenset({"Cc"})
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_INVISIBLE_OR_SPACE = _INVISIBLE | {"Zs"}
_LONGEST_SHOWN = 80


def exact_str(value: object) -> str | None:
    """Return ``value`` as an exact ``str``, or None if it is not text.

    A subclass may override any method that a check relies on, so its text is copied with ``str``'s method. The type is
    compared instead of using ``isinstance``, because an object can lie about its ``__class__``.
    """
    if type(value) is str:
        return value
    if issubclass(type(value), str):
        return str.__str__(cast("str", value))
    return None


def control_character(text: str) -> str | None:
    """Return the first control character as ``U+XXXX``; file names may contain any other character."""
    return _first(text, _ASCII_CONTROL, _CONTROL)


def invisible_character(text: str) -> str | None:
    """Return the first invisible character: control, format (bidi), surrogate or line separator."""
    return _first(text, _ASCII_CONTROL, _INVISIBLE)


def invisible_or_space(text: str) -> str | None:
    """Return the first invisible character or white space."""
    return _first(text, _ASCII_CONTROL_OR_SPACE, _INVISIBLE_OR_SPACE)


def shown(value: object) -> str:
    """Return a short, printable form of a rejected value, without running its code."""
    text = exact_str(value)
    if text is None:
        return f"a value of type {type(value).__name__}"
    if len(text) > _LONGEST_SHOWN:
        text = text[: _LONGEST_SHOWN - 3] + "..."
    return repr(text)


def _first(text: str, ascii_pattern: re.Pattern[str], categories: frozenset[str]) -> str | None:
    if text.isascii():
        match = ascii_pattern.search(text)
        return f"U+{ord(match.group()):04X}" if match else None
    for character in text:
        if unicodedata.category(character) in categories:
            return f"U+{ord(character):04X}"
    return None
