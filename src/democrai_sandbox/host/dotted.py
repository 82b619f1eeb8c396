"""Paths with ``..``: their target, and the folders that the guard checks before it follows them."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from democrai_sandbox.access.targets import LONGEST_RAW_TARGET
from democrai_sandbox.policy import Operation, ResourceType

from .explanations import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .explanations import Explanation, Question

_UP = ".."


def is_dotted(question: Question) -> bool:
    """Whether the question is about a path with ``..``."""
    target = question.target
    is_path = question.resource_type == ResourceType.FILESYSTEM and target.startswith("/")
    return is_path and len(target) <= LONGEST_RAW_TARGET and _UP in target.split("/")


def leads_to(question: Question) -> str:
    """Return the target; for a path with ``..``, the path that the kernel reaches by following links."""
    if not is_dotted(question):
        return question.target
    try:
        return os.path.realpath(question.target)
    except (OSError, ValueError):
        return question.target  # the parser reports the problem


def on_the_way(question: Question, explain: Callable[[Question], Explanation]) -> Explanation | None:
    """Return the reason why the guard refuses such a path before following it; None if it does not.

    A name before ``..`` must exist, so a subject that may not read it must not learn that it exists. ``explain``
    answers for a path as written: the guard follows no links at this point.
    """
    for folder in _folders(question):
        found = explain(replace(question, operation=Operation.READ.value, target=folder))
        if found.verdict is Verdict.ALLOWED:
            continue
        place = leads_to(question)
        return replace(
            found,
            question=question,
            words=f"The path {question.target} is refused because of {folder}, before it is followed to {place}: "
            f"{found.words}",
            advice=(f"Write the path without ..: {place}", *found.advice),
        )
    return None


def _folders(question: Question) -> Iterator[str]:
    """Yield the folder before each ``..`` that follows a name."""
    parts, after_name = question.target.split("/") if is_dotted(question) else [], False
    for place, part in enumerate(parts):
        if part == _UP and after_name:
            yield os.path.normpath("/".join(parts[:place]))
        if part not in ("", "."):
            after_name = part != _UP
