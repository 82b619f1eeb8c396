"""Shorthands of a guard: a path or target that stands for several rules."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .operations import NETWORK_OPERATIONS, WRITING_OPERATIONS, Operation, ResourceType
from .problems import InvalidInputError, Problem, pointer_to
from .rules import AccessRule, normalise_target
from .text import exact_str, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Iterable, but passed by mistake: each would be read as a list of characters, numbers or keys.
_NOT_A_LIST = (str, bytes, bytearray, memoryview, dict, os.PathLike)


def rules_for_paths(
    paths: Iterable[str | os.PathLike[str]], *, pointer: str = "/allowed_paths"
) -> tuple[AccessRule, ...]:
    """Return rules to read, create, modify and delete each absolute path. ``~`` is not expanded."""
    return _rules(paths, ResourceType.FILESYSTEM, WRITING_OPERATIONS, _path_text, pointer)


def rules_for_targets(targets: Iterable[str], *, pointer: str = "/allowed_targets") -> tuple[AccessRule, ...]:
    """Return rules to connect to, receive from and send to each target."""
    return _rules(targets, ResourceType.NETWORK, NETWORK_OPERATIONS, exact_str, pointer)


def _rules(
    values: Iterable[object],
    resource_type: ResourceType,
    operations: tuple[Operation, ...],
    to_text: Callable[[object], str | None],
    pointer: str,
) -> tuple[AccessRule, ...]:
    rules: dict[AccessRule, None] = {}
    problems: list[Problem] = []
    for index, value in enumerate(_items(values, pointer)):
        place = pointer_to(pointer, index)
        text = to_text(value)
        if text is None:
            problems.append(Problem(place, f"expected a text, got {shown(value)}"))
            continue
        try:
            normal = normalise_target(resource_type, text)
        except InvalidInputError as error:
            problems += [problem.moved(place) for problem in error.problems]
        else:
            rules.update((AccessRule(resource_type, operation, text, normal), None) for operation in operations)
    if problems:
        raise InvalidInputError(problems)
    return tuple(rules)


def _items(values: object, pointer: str) -> Iterable[object]:
    if isinstance(values, _NOT_A_LIST) or not hasattr(type(values), "__iter__"):
        raise InvalidInputError.of(f"expected a list, got {shown(values)}", pointer=pointer)
    return tuple(values)  # type: ignore[arg-type]  # has __iter__, as checked above


def _path_text(value: object) -> str | None:
    """Return a path as exact text; ``__fspath__`` is called once, because its result may change."""
    text = exact_str(value)
    if text is None and isinstance(value, os.PathLike):
        text = exact_str(os.fspath(value))
    return text
