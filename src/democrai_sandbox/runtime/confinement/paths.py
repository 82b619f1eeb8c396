"""Which paths a process needs and may have: those of the system and the interpreter, and what a subject's rules say."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.guard.runtime_paths import IMPORT_ONLY, runtime_entries
from democrai_sandbox.policy import FileAccess, Operation, ResourceType, prefixes_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from democrai_sandbox.policy import AccessRule

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_WRITING = frozenset({Operation.CREATE, Operation.MODIFY, Operation.DELETE})


_MOST_ENTRIES = 4096


class RuntimePaths(NamedTuple):
    """What every process has: what the guard gives every subject, and the programs of the system."""

    read: tuple[str, ...]
    execute: tuple[str, ...]
    temp: str


def runtime_paths() -> RuntimePaths:
    """Find them out, in the host's own code and before any guard."""
    entries = [(os.fsdecode(path), mask) for path, mask in runtime_entries()]
    plain = int(FileAccess.READ)
    read = (path for path, mask in entries if mask & plain and not mask & (IMPORT_ONLY | int(FileAccess.CREATE)))
    interpreter = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    execute = (*_SYSTEM, f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", interpreter)
    return RuntimePaths(tuple(dict.fromkeys(read)), tuple(dict.fromkeys(execute)), tempfile.gettempdir())


class Shut:
    """Keeps what the host protects out of what is opened to a process.

    The kernel opens a folder with all that is beneath it. So a folder around a protected place is replaced by what lies
    in it, beside the way to that place: what is made there later is not open.
    """

    def __init__(
        self, protected: tuple[str, ...], own: Iterable[str] = (), known: Mapping[str, str] | None = None
    ) -> None:
        """Take the places, wherever they lead, and those among them that the runtime gave to the subject itself.

        ``known`` says where some roots lead that never change.
        """
        self._known = known or {}
        self._protected = _ends(protected)
        self._own = _ends(own)

    def paths(self, roots: Iterable[str]) -> tuple[str, ...]:
        """Return the roots, each as it is or as what is left of it."""
        return tuple(dict.fromkeys(path for root in roots for path in self._left(root)))

    def rules(self, rules: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
        """Return the rules, those about files for what is left of their targets."""
        return tuple(dict.fromkeys(changed for rule in rules for changed in self._rule(rule)))

    def _rule(self, rule: AccessRule) -> Iterator[AccessRule]:
        if rule.resource_type is not ResourceType.FILESYSTEM:
            yield rule
            return
        for path in self._left(rule.normalized_target):
            yield rule if path == rule.normalized_target else replace(rule, target=path, normalized_target=path)

    def _left(self, root: str) -> Iterable[str]:
        real = _end(self._known.get(root) or os.path.realpath(root))
        if real.startswith(self._own):
            return (root,)
        if real.startswith(self._protected):
            return ()
        return self._beside(real) if self._is_around(real) else (root,)

    def _is_around(self, folder: str) -> bool:
        return any(place.startswith(folder) for place in self._protected)

    def _beside(self, folder: str) -> Iterator[str]:
        """Yield what lies beside the way to protected places. A link is left out: its rule would be its target's."""
        try:
            with os.scandir(folder) as entries:
                found = [entry.path for entry in itertools.islice(entries, _MOST_ENTRIES) if not entry.is_symlink()]
        except OSError:
            return
        for path in found:
            end = _end(path)
            if end in self._protected:
                continue
            if self._is_around(end):
                yield from self._beside(end)
            else:
                yield path


def _end(path: str) -> str:
    """Return a path with a slash at its end: whatever begins with it is the same or lies below."""
    return path if path.endswith("/") else f"{path}/"


def _ends(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_end(os.path.realpath(path)) for path in paths))


def steady_rules(rules: Iterable[AccessRule], writable: Iterable[str]) -> tuple[AccessRule, ...]:
    """Return the rules without those for places that the subject itself can put a link in.

    A rule of the kernel is for what a path leads to when the process is started. Below a folder that the subject
    writes, a link could lead anywhere; the folder's own rule covers what really lies there, but for executing.
    """
    found = tuple(rules)
    roots = dict.fromkeys((*writable, *(rule.normalized_target for rule in found if _is_writing(rule))))
    return tuple(rule for rule in found if _is_steady(rule, roots))


def _is_writing(rule: AccessRule) -> bool:
    return rule.resource_type is ResourceType.FILESYSTEM and rule.operation in _WRITING


def _is_steady(rule: AccessRule, roots: Container[str]) -> bool:
    if rule.resource_type is not ResourceType.FILESYSTEM:
        return True
    path = rule.normalized_target
    # There may be many thousand roots; the folders around a path are never many.
    around = [folder for folder in prefixes_of(path) if folder in roots and folder != path]
    if not around:
        return True
    if rule.operation is not Operation.EXECUTE:
        return False
    return any(
        os.path.realpath(path) == os.path.realpath(root) + path.removeprefix(root.rstrip("/")) for root in around
    )
