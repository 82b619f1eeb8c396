"""Paths of file targets: absolute, compared by whole components, never patterns; and the index of path rights.

Everything here is lexical. The caller resolves symbolic links.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from .operations import EVERY_ACCESS, NO_ACCESS, FileAccess
from .problems import InvalidInputError, Problem
from .text import exact_str, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    """Return the problem of a declared path or ``unix:`` target that looks like a pattern, or None.

    ``/srv/data/*.csv`` would name only the file ``*.csv`` and not the intended files, so it is rejected. A file with
    such a name is declared with ``./`` before the name: ``/srv/data/./report[1].csv``.
    """
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


SHALLOWEST_FOLDER = 2
"""Components of the broadest folder that is ever proposed instead of its files."""
_TEMPORARY = re.compile(
    r"(?<![a-z0-9])tmp[a-z0-9_]{8}(?![a-z0-9])"  # as the tempfile module generates them
    r"|(?<=\.tmp\.)[a-z0-9_]{6,}"
    r"|(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])"
    r"|(?<![0-9a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9a-f])"
)
"""Names that differ in the next run."""
_NOT_ABOVE_PROTECTED = FileAccess.DELETE | FileAccess.CREATE


def normalise_path(path: str) -> str:
    """Return an absolute path without ``//``, ``.``, ``..`` and a trailing slash.

    Rejects values that are not text, the empty string, NUL and relative paths. ``..`` at the root stays there. Bytes
    that are not UTF-8 are accepted in their ``surrogateescape`` form.
    """
    text = exact_str(path)
    if text is None:
        raise InvalidInputError.of(f"expected a path, got {shown(path)}")
    if not text:
        raise InvalidInputError.of("the path is empty")
    if "\0" in text:
        raise InvalidInputError.of(f"the path contains a NUL: {shown(text)}")
    if text[0] != "/":
        raise InvalidInputError.of(f"the path is not absolute: {shown(text)}")
    components: list[str] = []
    for component in text.split("/"):
        if component == "..":
            del components[-1:]
        elif component not in ("", "."):
            components.append(component)
    return "/" + "/".join(components)


def is_at_or_below(path: str, root: str) -> bool:
    """Return whether ``path`` is ``root`` or below it; ``/srv/ab`` is not below ``/srv/a``."""
    inner, outer = normalise_path(path), normalise_path(root)
    return outer in ("/", inner) or inner.startswith(outer + "/")


@final
@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class PathIndex:
    """Rights of a path, from many roots. Immutable.

    This is the reference for the matcher of the native core; both must agree on every input.

    ``mask(path)`` is defined by a walk over the normalized path's prefixes by whole components, from ``/`` down to
    the path itself, with an accumulator that starts empty and a flag *shut* that starts false. For each prefix:

    1. if it is a protected path: empty the accumulator and set *shut*;
    2. else if it is the path of an entry flagged as owned: clear *shut*;
    3. if *shut* is false and the prefix has an entry: add the entry's mask to the accumulator.

    At the end, if the path is a proper ancestor of a protected path, ``DELETE`` and ``CREATE`` are removed.

    So a path that is both protected and owned is protected, and an owned path without an entry opens nothing. An
    ancestor of a protected path cannot be deleted or moved, because the protected path would move with it. It cannot be
    created either, because a link in its place would determine where the host stores the protected file.
    """

    _masks: dict[str, FileAccess]
    _protected: frozenset[str]
    _owned: frozenset[str]
    _ancestors: frozenset[str]
    _depth: int

    def __init__(
        self,
        entries: Iterable[tuple[str, FileAccess | int]] = (),
        *,
        protected: Iterable[str] = (),
        owned: Iterable[str] = (),
    ) -> None:
        """Build the index; masks for the same path are combined."""
        masks: dict[str, FileAccess] = {}
        for path, mask in entries:
            root = normalise_path(path)
            masks[root] = masks.get(root, NO_ACCESS) | _checked_mask(mask)
        shut = frozenset(map(normalise_path, protected))
        attributes = {
            "_masks": masks,
            "_protected": shut,
            "_owned": frozenset(map(normalise_path, owned)) & masks.keys(),
            "_ancestors": frozenset(prefix for path in shut for prefix in prefixes_of(path) if prefix != path),
            "_depth": max((_depth(path) for path in (*masks, *shut)), default=0),
        }
        for name, value in attributes.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        """Return the roots and masks."""
        return f"PathIndex({list(self.entries)!r}, protected={self.protected!r}, owned={self.owned!r})"

    @property
    def entries(self) -> tuple[tuple[str, FileAccess], ...]:
        """Roots with their masks, sorted by path."""
        return tuple(sorted(self._masks.items()))

    @property
    def protected(self) -> tuple[str, ...]:
        """Protected paths, sorted."""
        return tuple(sorted(self._protected))

    @property
    def owned(self) -> tuple[str, ...]:
        """Paths of the entries flagged as owned, sorted."""
        return tuple(sorted(self._owned))

    def mask(self, path: str) -> FileAccess:
        """Return all rights on ``path``."""
        normal = normalise_path(path)
        found = NO_ACCESS
        shut = False
        # No key is deeper than _depth, so the rest of a long path cannot change the result.
        for prefix in prefixes_of(normal, self._depth):
            if prefix in self._protected:
                found, shut = NO_ACCESS, True
            elif prefix in self._owned:
                shut = False
            if not shut:
                found |= self._masks.get(prefix, NO_ACCESS)
        return found & ~_NOT_ABOVE_PROTECTED if normal in self._ancestors else found

    def allows(self, path: str, access: FileAccess) -> bool:
        """Return whether ``path`` has all rights in ``access``; an empty ``access`` is never allowed."""
        return bool(access) and access & ~self.mask(path) == NO_ACCESS


def prefixes_of(path: str, depth: int | None = None) -> Iterator[str]:
    """Yield ``/`` and every component prefix of a normalized path, at most ``depth`` components long."""
    yield "/"
    if path == "/":
        return
    end = 0
    while end != len(path) and (depth is None or depth > 0):
        end = path.find("/", end + 1)
        end = len(path) if end == -1 else end
        yield path[:end]
        depth = None if depth is None else depth - 1


def folder_of_temporary(path: str) -> str:
    """Return the folder of the first name that differs in every run; empty without one, or if it is very broad."""
    for place in prefixes_of(path):
        folder, _, name = place.rpartition("/")
        if _depth(folder) >= SHALLOWEST_FOLDER and _TEMPORARY.search(name):
            return folder
    return ""


def _depth(path: str) -> int:
    return 0 if path == "/" else path.count("/")


def _checked_mask(mask: FileAccess | int) -> FileAccess:
    if type(mask) not in (int, FileAccess) or mask & ~int(EVERY_ACCESS):
        raise InvalidInputError.of(f"expected a file access mask, got {mask if type(mask) is int else shown(mask)}")
    return FileAccess(mask)
