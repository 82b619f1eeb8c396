"""Encoding of resume contexts: plain JSON data of limited size.

A context comes from guarded code and is read outside the guard, so no method that guarded code could override is
called.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import Any

from democrai_sandbox.policy import InvalidInputError, pointer_to
from democrai_sandbox.policy.text import shown

LONGEST_CONTEXT = 64 * 1024
"""Maximum size of a context as JSON, in bytes."""
DEEPEST_CONTEXT = 64
"""Maximum nesting depth of lists and objects."""
_POINTER = "/resume_context"
_LARGEST_INTEGER_BITS = 1024
_PLAIN = (str, int, float, bool, type(None))


def encode_context(context: Any) -> bytes:
    """Return a context as JSON.

    Raises ``InvalidInputError`` with the position of a value that is not JSON or too large.
    """
    copied = _Copy().of(context)
    # A lone surrogate is not valid UTF-8, but Python file names can contain one, and it must survive the round trip.
    encoded = json.dumps(copied, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if len(encoded) > LONGEST_CONTEXT:
        raise InvalidInputError.of(f"{len(encoded)} bytes as JSON; the limit is {LONGEST_CONTEXT}", pointer=_POINTER)
    return encoded


def decode_context(encoded: bytes) -> Any:
    """Return the original value of an encoded context."""
    return json.loads(encoded.decode("utf-8", "surrogatepass"))


class _Copy:
    """Copy of a context from guarded code.

    Accepts exact types only, because methods of a subclass would run unguarded.
    """

    def __init__(self) -> None:
        self._left = LONGEST_CONTEXT
        self._path: list[str | int] = []

    def of(self, value: Any) -> Any:
        """Return a copy of plain JSON data, or raise with the position of the invalid value."""
        self._spend(1)
        kind = type(value)
        if kind is dict or kind is list:
            return self._inside(value)
        if kind is str:
            self._spend(len(value))
        elif kind is int and value.bit_length() > _LARGEST_INTEGER_BITS:
            raise self._refusal(f"an integer of more than {_LARGEST_INTEGER_BITS} bits")
        elif kind is float and not isfinite(value):
            raise self._refusal(f"{value} is not JSON")
        elif not any(kind is plain for plain in _PLAIN):
            raise self._refusal(f"{shown(value)} is not JSON")
        return value

    def _inside(self, value: dict[Any, Any] | list[Any]) -> Any:
        if len(self._path) >= DEEPEST_CONTEXT:
            raise InvalidInputError.of(
                f"nested deeper than {DEEPEST_CONTEXT} levels, or contains itself", pointer=_POINTER
            )
        # Copy atomically first, because another thread may change the value meanwhile.
        if isinstance(value, list):
            return [self._member(index, item) for index, item in enumerate(value.copy())]
        copied = {}
        for key, item in value.copy().items():
            if type(key) is not str:
                raise self._refusal(f"expected a text as key, got {shown(key)}")
            self._spend(len(key))
            copied[key] = self._member(key, item)
        return copied

    def _member(self, token: str | int, item: Any) -> Any:
        self._path.append(token)
        copied = self.of(item)
        self._path.pop()
        return copied

    def _spend(self, size: int) -> None:
        """Stop before a huge context is copied: every value and every character takes at least one byte."""
        self._left -= size
        if self._left < 0:
            raise InvalidInputError.of(f"more than {LONGEST_CONTEXT} bytes as JSON", pointer=_POINTER)

    def _refusal(self, message: str) -> InvalidInputError:
        return InvalidInputError.of(message, pointer=pointer_to(_POINTER, *self._path))
