"""Configuration from the application: copied into plain values, so that later changes have no effect."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from democrai_sandbox.policy import Problem, pointer_to
from democrai_sandbox.policy.sections import described
from democrai_sandbox.policy.text import exact_str

from .document import DEEPEST_NESTING, LONGEST_KEY, MOST_VALUES

_LARGEST_NUMBER = 10**64


def plain_values(given: Mapping[Any, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return a copy with dictionaries, lists, texts and numbers only, and the problems of other values."""
    copier = _Copier()
    return copier.copied(given, "", 1), copier.problems


class _Copier:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._values = 0

    def copied(self, given: Mapping[Any, Any], pointer: str, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, value in given.items():
            key = exact_str(name)
            if key is None or len(key) > LONGEST_KEY:
                message = f"a key must be a text of at most {LONGEST_KEY} characters, got {described(name)}"
                self.problems.append(Problem(pointer, message))
            else:
                members[key] = self._value(value, pointer_to(pointer, key), depth)
        return members

    def _value(self, value: object, pointer: str, depth: int) -> Any:
        self._values += 1
        if self._values > MOST_VALUES or depth > DEEPEST_NESTING:
            # Reported once: an object that contains itself would repeat it.
            if self._values <= MOST_VALUES + 1:
                message = f"more than {MOST_VALUES:,} values, or nested deeper than {DEEPEST_NESTING} levels"
                self.problems.append(Problem(pointer, message))
            return None
        if isinstance(value, Mapping):
            return self.copied(value, pointer, depth + 1)
        if isinstance(value, list | tuple):
            return [self._value(item, pointer_to(pointer, index), depth + 1) for index, item in enumerate(value)]
        return self._scalar(value, pointer)

    def _scalar(self, value: object, pointer: str) -> Any:
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        text = exact_str(path)
        if text is not None:
            return text
        if value is None or type(value) in (bool, float):
            return value
        if type(value) is int and abs(value) < _LARGEST_NUMBER:
            return value
        self.problems.append(Problem(pointer, f"expected a plain value, got {described(value)}"))
        return None
