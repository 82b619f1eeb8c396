"""Detection of file targets that look like patterns. File targets are paths, and cover everything below them.

``/srv/data/*.csv`` would name only the file ``*.csv`` and not the intended files, so it is rejected. Declare a file
with such a name with ``./`` before the name: ``/srv/data/./report[1].csv``.
"""

from __future__ import annotations

import re

from .problems import Problem
from .text import shown

UNIX_SCHEME = "unix:"
_PATTERN = re.compile(r"[*?]|\[[^\[\]]+\]|\{[^{}]*,[^{}]*\}")


def pattern_in(target: str) -> str:
    """Return the first name of a path that looks like a pattern and has no ``./`` before it, or an empty text."""
    names = target.split("/")
    for place, name in enumerate(names):
        if _PATTERN.search(name) and (place == 0 or names[place - 1] != "."):
            return name
    return ""


def folder_before_pattern(target: str) -> str:
    """Return the part of a path before the first name that looks like a pattern; may be empty."""
    before = target.split("/")
    return "/".join(before[: before.index(pattern_in(target))])


def literal_target(target: str) -> str:
    """Return a path or ``unix:`` target in declared form: with ``./`` before names that look like patterns."""
    if not _PATTERN.search(target):
        return target
    scheme = UNIX_SCHEME if target.startswith(UNIX_SCHEME) else ""
    names = target.removeprefix(scheme).split("/")
    return scheme + "/".join(f"./{name}" if _PATTERN.search(name) else name for name in names)


def pattern_problem(target: str, pointer: str) -> Problem | None:
    """Return the problem of a declared path or ``unix:`` target that looks like a pattern, or None."""
    scheme = UNIX_SCHEME if target.startswith(UNIX_SCHEME) else ""
    path = target.removeprefix(scheme)
    name = pattern_in(path)
    if not name:
        return None
    message = (
        f"file targets have no wildcards, so {shown(name)} would match only a file of exactly that name; declare the "
        "folder, which covers everything below it, or each file; if the file has that name, write './' before it: "
        f"{shown(literal_target(target))}"
    )
    return Problem(pointer, message, None if scheme else folder_before_pattern(path) or None)
