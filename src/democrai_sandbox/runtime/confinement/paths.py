"""Which paths a process needs and may have: those of the system and the interpreter, and what a subject's rules say.

Paths are followed here, once, and the spawn server follows no link after that: what was looked at is what is opened.
What is needed for it are functions of the interpreter's own, held by their names: a subject in this process can replace
those of the standard library, and one that lies about a path would decide.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import islice
from os import getpid, readlink, scandir
from os.path import isfile, realpath
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.guard.runtime_paths import (
    IMPORT_ONLY,
    IMPORTABLE,
    read_only_paths,
    runtime_entries,
)
from democrai_sandbox.policy import AccessRule, FileAccess, Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
_WRITING = (Operation.CREATE, Operation.MODIFY, Operation.DELETE)
_OWN_PROC = ("/proc/self/", "/proc/thread-self/", "/proc/net/")
_MOST_ENTRIES = 4096
_MOST_PLACES = 500
_MODULES = (".py", ".pyc", ".pyi", ".so")
_MOST_LINKS = 40
"""As many as the kernel follows."""
_ENCODING = sys.getfilesystemencoding()


class RuntimePaths(NamedTuple):
    """What every process has: what the guard gives every subject, and the programs of the system."""

    read: tuple[str, ...]
    listed: tuple[str, ...]
    """Folders of the application on ``sys.path``: importing looks for names there."""
    execute: tuple[str, ...]
    temp: str
    read_only: tuple[str, ...] = ()
    """The host's code, which no process of a subject changes although it lies in a folder that the subject writes."""


def runtime_paths() -> RuntimePaths:
    """Find them out, in the host's own code and before any guard."""
    entries = [(decoded(path), mask) for path, mask in runtime_entries()]
    plain = int(FileAccess.READ)
    left_out = IMPORT_ONLY | IMPORTABLE | int(FileAccess.CREATE)
    listed = [path for path, mask in entries if mask & IMPORTABLE]
    read = [path for path, mask in entries if mask & plain and not mask & left_out]
    read += [place for folder in listed if folder not in read for place in importable_places(folder)]
    interpreter = realpath(getattr(sys, "_base_executable", sys.executable))
    execute = (*_SYSTEM, f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", interpreter)
    temp = tempfile.gettempdir()
    return RuntimePaths(_unique(read), _unique(listed), _unique(execute), temp, read_only_paths())


def _unique(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def importable_places(folder: str, depth: int = 3) -> Iterator[str]:
    """Yield the modules and packages in a folder on ``sys.path``. A rule for the folder would open all the rest."""
    try:
        with scandir(folder) as found:
            entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries[:_MOST_PLACES]:
        if not entry.is_dir():
            if entry.name.endswith(_MODULES):
                yield entry.path
        elif entry.name == "__pycache__" or isfile(f"{entry.path}/__init__.py"):  # noqa: PTH113 - a text
            yield entry.path
        elif depth > 1:  # a package without a file of its own
            yield from importable_places(entry.path, depth - 1)


def decoded(path: bytes) -> str:
    """Return a path as a text. ``os.fsdecode`` asks a function that can be replaced."""
    return path.decode(_ENCODING, "surrogateescape")


def followed(path: str, written: Container[str] = ()) -> str | None:
    """Return where a path leads; None where it takes a link at or below one of the written places.

    A rule of the kernel is for what a path leads to when the process is started. There, a link of the subject's own
    making could lead anywhere; a module may also remove the folder that its rule is for, and put a link in its place.
    """
    here, rest, links = "", path.split("/")[::-1], 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            here = here.rpartition("/")[0]
            continue
        try:
            target = readlink(f"{here}/{name}")  # noqa: PTH115 - held by its name
        except OSError:  # no link, or nothing
            here = f"{here}/{name}"
            continue
        links += 1
        if links > _MOST_LINKS or any(place in written for place in _upwards(f"{here}/{name}")):
            return None
        if target.startswith("/"):
            here = ""
        rest += target.split("/")[::-1]
    return here or "/"


def written_places(rules: Iterable[AccessRule], *given: str) -> frozenset[str]:
    """Return the folders that a subject writes, as they are named and where they lead."""
    places = {*given, *(rule.normalized_target for rule in rules if _is_writing(rule))}
    return frozenset(places | {real for place in places if (real := followed(place)) is not None})


class Shut:
    """Follows what is to be opened to a process, and keeps out of it what the host protects.

    The kernel opens a folder with all that is beneath it. So a folder around a protected place is replaced by what lies
    in it, beside the way to that place: what is made there later is not open. The same goes for writing in a folder
    around code of the host.
    """

    def __init__(
        self,
        protected: tuple[str, ...],
        own: Iterable[str] = (),
        known: Mapping[str, str] | None = None,
        *,
        written: Container[str] = (),
        read_only: Iterable[str] = (),
    ) -> None:
        """Take the places, wherever they lead, and those among them that the runtime gave to the subject itself.

        ``known`` says where some roots lead that never change, ``written`` where the subject can put links,
        ``read_only`` what can be opened for reading and not for writing.
        """
        self._ways = dict(known or {})
        self._written = written
        self._protected = _ends(protected)
        self._own = _ends(own)
        self._read_only = _ends(read_only)
        self._split: dict[str, None] = {}
        self._this = f"/proc/{getpid()}/"

    @property
    def split(self) -> tuple[str, ...]:
        """The writable folders around code of the host: nothing new can be made directly in them."""
        return tuple(self._split)

    def paths(self, roots: Iterable[str], *, writing: bool = False) -> tuple[str, ...]:
        """Return where the roots lead, each as it is or as what is left of it."""
        return tuple(dict.fromkeys(path for root in roots for path in self._left(root, writing=writing)))

    def rules(self, rules: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
        """Return the rules, those about files for what is left of their targets."""
        return tuple(dict.fromkeys(changed for rule in rules for changed in self._rule(rule)))

    def _rule(self, rule: AccessRule) -> Iterator[AccessRule]:
        program = rule.resource_type is ResourceType.SYSTEM_DEPENDENCY and rule.normalized_target.startswith("/")
        if rule.resource_type is not ResourceType.FILESYSTEM and not program:
            yield rule
            return
        for path in self._left(rule.normalized_target, writing=_is_writing(rule)):
            same = path == rule.normalized_target
            yield rule if same else AccessRule(rule.resource_type, rule.operation, path, path)

    def _left(self, root: str, *, writing: bool = False) -> Iterable[str]:
        if _end(root).startswith(_OWN_PROC):
            return (root,)
        if root not in self._ways:
            self._ways[root] = followed(root, self._written) or ""
        way = self._ways[root]
        real = _end(way)
        if not way or real.startswith(self._this):  # a link by way of /proc/self: for the child it would lead here
            return ()
        protected = () if real.startswith(self._own) else self._protected
        if real.startswith(protected) or (writing and real in self._read_only):
            return ()
        around = (*protected, *self._around_code(real)) if writing else protected
        return _beside(real, around) if _is_around(real, around) else (way,)

    def _around_code(self, folder: str) -> tuple[str, ...]:
        """Return the places of code in a folder that is written."""
        inside = tuple(place for place in self._read_only if place.startswith(folder))
        if inside:
            self._split[folder.rstrip("/") or "/"] = None
        return inside


def _is_around(folder: str, places: Iterable[str]) -> bool:
    return any(place.startswith(folder) for place in places)


def _beside(folder: str, places: tuple[str, ...]) -> Iterator[str]:
    """Yield what lies beside the way to the places. A link is left out: its rule would be its target's."""
    try:
        with scandir(folder) as entries:
            found = [entry.path for entry in islice(entries, _MOST_ENTRIES) if not entry.is_symlink()]
    except OSError:
        return
    for path in found:
        end = _end(path)
        if end in places:
            continue
        if _is_around(end, places):
            yield from _beside(end, places)
        else:
            yield path


def _end(path: str) -> str:
    """Return a path with a slash at its end: whatever begins with it is the same or lies below."""
    return path if path.endswith("/") else f"{path}/"


def _ends(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_end(followed(path) or path) for path in paths))


def _is_writing(rule: AccessRule) -> bool:
    return rule.resource_type is ResourceType.FILESYSTEM and any(rule.operation is writing for writing in _WRITING)


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and the folders around it. There may be many thousand roots; there are never many folders."""
    yield path
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path
