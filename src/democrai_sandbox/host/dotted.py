"""Paths that are written with ``..``: where they lead, and what the guard looks at before it follows them."""

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
    """Whether it is asked about a path that goes up somewhere."""
    target = question.target
    is_path = question.resource_type == ResourceType.FILESYSTEM and target.startswith("/")
    return is_path and len(target) <= LONGEST_RAW_TARGET and _UP in target.split("/")


def leads_to(question: Question) -> str:
    """Return the target; of a path that goes up, the place to which the kernel comes: links count where they stand."""
    if not is_dotted(question):
        return question.target
    try:
        return os.path.realpath(question.target)
    except (OSError, ValueError):
        return question.target  # whoever reads it says what is wrong with it


def on_the_way(question: Question, explain: Callable[[Question], Explanation]) -> Explanation | None:
    """Return why the guard refuses such a path before it follows it; None when it does not.

    A name before ``..`` has to be there, so whoever may not read it must not find that out. ``explain`` answers for a
    path as it is written: at this point the guard follows no link.
    """
    for folder in _folders(question):
        found = explain(replace(question, operation=Operation.READ.value, target=folder))
        if found.verdict is Verdict.ALLOWED:
            continue
        place = leads_to(question)
        return replace(
            found,
            question=question,
            words=f"Written as {question.target}, it is refused because of {folder}, before it is followed to {place}: "
            f"{found.words}",
            advice=(f"Write the path without ..: {place}", *found.advice),
        )
    return None


def _folders(question: Question) -> Iterator[str]:
    """Yield what stands before each ``..`` that follows a name."""
    parts, after_name = question.target.split("/") if is_dotted(question) else [], False
    for place, part in enumerate(parts):
        if part == _UP and after_name:
            yield os.path.normpath("/".join(parts[:place]))
        if part not in ("", "."):
            after_name = part != _UP
