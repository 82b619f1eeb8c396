"""Rights of a process to start, and its paths: of the system, of its rules, and of the programs that it may execute.

Links are resolved here, once, and the spawn server follows none after that: the checked path is the opened path. The
functions used for it are saved at import, because a subject in this process can replace those of the standard library.
"""

from __future__ import annotations

import sys
import tempfile
from itertools import islice
from os import O_CLOEXEC, O_NONBLOCK, O_RDONLY, close, getpid, pread, readlink, scandir
from os import open as open_file
from os.path import isfile, realpath
from stat import S_ISDIR, S_ISREG
from struct import error as StructError  # noqa: N812 - the only name of a builtin exception here
from struct import unpack_from
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.guard.runtime_paths import (
    IMPORT_ONLY,
    IMPORTABLE,
    program_places,
    read_only_paths,
    runtime_entries,
)
from democrai_sandbox.manifests.limits import NO_LIMITS
from democrai_sandbox.policy import AccessRule, FileAccess, Operation, ResourceType, is_at_or_below
from democrai_sandbox.runtime.children.path_rights import SYSTEM_PROGRAMS, decoded, is_kind

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping

    from democrai_sandbox.manifests import Limits

_WRITING = (Operation.CREATE, Operation.MODIFY, Operation.DELETE)
_OWN_PROC = ("/proc/self/", "/proc/thread-self/", "/proc/net/")
_MOST_ENTRIES = 4096
_MOST_PLACES = 500
_MODULES = (".py", ".pyc", ".pyi", ".so")
_MOST_LINKS = 40
"""The limit of the kernel."""


class ProcessRights(NamedTuple):
    """Subject of a process to start, and its rights."""

    label: str
    """Label of the subject in call chains."""
    rules: tuple[AccessRule, ...] = ()
    """All its rights: declared and approved."""
    read: tuple[str, ...] = ()
    """Additional folders to read, also below protected paths: its code, its environment."""
    write: tuple[str, ...] = ()
    """Additional folders to write, also below protected paths: its data."""
    folders: tuple[str, ...] = ()
    """Declared folders to create if they are missing."""
    readable: tuple[str, ...] = ()
    """Additional paths that were checked for reading, unless they are protected."""
    execute: tuple[str, ...] = ()
    """Additional programs that were checked for execution."""
    programs: tuple[str, ...] | None = None
    """Only programs of the system that it may execute, unless they are protected; None for all of them."""
    written: tuple[str, ...] = ()
    """Further places where it may have created links: approved for writing, and not among the rules."""
    protected: tuple[str, ...] = ()
    """Paths that the host protects from all subjects, also below a folder that this one may use."""
    own_temp: bool = False
    """Whether it writes to a separate temp folder; then it cannot use the usual one."""
    limits: Limits = NO_LIMITS
    wall: bool = True
    """Whether the wall-clock limit applies to the whole process."""


class RuntimePaths(NamedTuple):
    """Paths for every process: those that the guard gives every subject, and the programs of the system."""

    read: tuple[str, ...]
    listed: tuple[str, ...]
    """Application folders on ``sys.path``, which imports list."""
    execute: tuple[str, ...]
    temp: str
    read_only: tuple[str, ...] = ()
    """Code of the host that subjects cannot change, even below a folder that they may write."""


def runtime_paths() -> RuntimePaths:
    """Return them. Called in the host's own code, before any guard."""
    entries = [(decoded(path), mask) for path, mask in runtime_entries()]
    plain = int(FileAccess.READ)
    left_out = IMPORT_ONLY | IMPORTABLE | int(FileAccess.CREATE)
    listed = [path for path, mask in entries if mask & IMPORTABLE]
    read = [path for path, mask in entries if mask & plain and not mask & left_out]
    read += [place for folder in listed if folder not in read for place in importable_places(folder)]
    interpreter = realpath(getattr(sys, "_base_executable", sys.executable))
    execute = (*SYSTEM_PROGRAMS, f"{sys.prefix}/bin", f"{sys.base_prefix}/bin", interpreter)
    temp = tempfile.gettempdir()
    return RuntimePaths(_unique(read), _unique(listed), _unique(execute), temp, read_only_paths())


def _unique(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(paths))


def importable_places(folder: str, depth: int = 3) -> Iterator[str]:
    """Yield the modules and packages in a folder on ``sys.path``. A rule for the folder would permit all files."""
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
        elif depth > 1:  # a namespace package
            yield from importable_places(entry.path, depth - 1)


def followed(path: str, written: Container[str] = ()) -> str | None:
    """Return the resolved path; None if it uses a link at or below one of the written places.

    A kernel rule applies to the path's target at the start of the process. A link that the subject created could lead
    anywhere; a module may also replace the folder of its rule by a link.
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
        except OSError:  # not a link, or missing
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
    """Return the folders that a subject writes, by name and resolved."""
    places = {*given, *(rule.normalized_target for rule in rules if _is_writing(rule))}
    return frozenset(places | {real for place in places if (real := followed(place)) is not None})


class ProtectedPaths:
    """Resolves the paths for a process, and excludes protected ones.

    A kernel rule covers a folder with everything below it. So a folder around a protected path is replaced by its other
    entries; files created there later are not accessible. The same applies to write access around code of the host.
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
        """Take the protected paths, and those among them that the runtime gave to the subject itself.

        ``known`` has resolved roots that never change, ``written`` the places where the subject can create links,
        ``read_only`` the paths that can be opened only for reading.
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
        """Writable folders around code of the host, in which no new files can be created directly."""
        return tuple(self._split)

    def paths(self, roots: Iterable[str], *, writing: bool = False) -> tuple[str, ...]:
        """Return the resolved roots, each as it is or as its remaining entries."""
        return tuple(dict.fromkeys(path for root in roots for path in self._left(root, writing=writing)))

    def rules(self, rules: Iterable[AccessRule]) -> tuple[AccessRule, ...]:
        """Return the rules; file rules apply to the remaining entries of their targets."""
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
        if not way or real.startswith(self._this):  # a link through /proc/self would lead the child to this process
            return ()
        protected = () if real.startswith(self._own) else self._protected
        if real.startswith(protected) or (writing and real in self._read_only):
            return ()
        around = (*protected, *self._around_code(real)) if writing else protected
        return _beside(real, around) if _is_around(real, around) else (way,)

    def _around_code(self, folder: str) -> tuple[str, ...]:
        """Return the code paths inside a writable folder."""
        inside = tuple(place for place in self._read_only if place.startswith(folder))
        if inside:
            self._split[folder.rstrip("/") or "/"] = None
        return inside


def _is_around(folder: str, places: Iterable[str]) -> bool:
    return any(place.startswith(folder) for place in places)


def _beside(folder: str, places: tuple[str, ...]) -> Iterator[str]:
    """Yield the entries beside the protected paths. Links are omitted, because a rule for one applies to its target."""
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
    """Return a path with a trailing slash, as a prefix of the path itself and everything below it."""
    return path if path.endswith("/") else f"{path}/"


def _ends(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_end(followed(path) or path) for path in paths))


def _is_writing(rule: AccessRule) -> bool:
    return rule.resource_type is ResourceType.FILESYSTEM and any(rule.operation is writing for writing in _WRITING)


def _upwards(path: str) -> Iterator[str]:
    """Yield a path and its ancestors. Roots may be many thousands; ancestors are always few."""
    yield path
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        yield path


# ---- programs --------------------------------------------------------------------------------------------------------

_HEADER = 256
"""The kernel reads as much of a script's first line."""
_MOST_FILES = 16
_ELF64 = b"\x7fELF\x02\x01"
_ELF32 = b"\x7fELF\x01\x01"
_LAYOUTS = ((_ELF64, "<Q", 32, "<HH", 54, "<Q", 8, 32), (_ELF32, "<I", 28, "<HH", 42, "<I", 4, 16))
"""By magic: format and offset of the program headers' place, of their size and number, and of a segment's fields."""
_INTERPRETER_SEGMENT = 3
_MOST_SEGMENTS = 64
_LONGEST_PATH = 4096
_INTERPRETER = realpath(sys.executable)
_ROOTS = tuple(map(realpath, (*SYSTEM_PROGRAMS, f"{sys.prefix}/bin", f"{sys.base_prefix}/bin")))
_PART_FOLDERS = ("/usr/lib/{}", "/usr/libexec/{}", "/usr/lib/{}-core", "/usr/libexec/{}-core")
"""Folders where a program of the system keeps the programs that are parts of it, such as ``/usr/lib/git-core``."""


def executed_files(program: str, rules: Iterable[AccessRule], named: Iterable[str]) -> tuple[str, ...]:
    """Return all files that a child executes to run this program, the named ones, and those of its execute rules.

    Interpreters and loaders count only if they are programs of the system: the subject may have written the file that
    names them, and a right to execute a file is also a right to read it.
    """
    own = (
        rule.normalized_target
        for rule in rules
        if rule.resource_type is ResourceType.FILESYSTEM and rule.operation is Operation.EXECUTE
    )
    found = [loader_of(_INTERPRETER)]  # serves the programs in a folder, too
    for path in (program, *own):
        found += (path, *filter(_is_of_system, _needed_by(path)))
    for target in named:
        for place in program_places(target):
            if is_kind(place, S_ISREG):
                found += (place, *filter(_is_of_system, _needed_by(place)), *_parts(place))
    return tuple(dict.fromkeys(filter(None, found)))


def _needed_by(path: str) -> Iterator[str]:
    """Yield the interpreter of a script, the interpreter's interpreter, and so on, and the loaders of all of them."""
    waiting, seen = [path], 0
    while waiting and (seen := seen + 1) <= _MOST_FILES:
        here = waiting.pop(0)
        header = _read(here, _HEADER)
        if header.startswith(b"#!"):
            interpreters = tuple(_interpreters(header))
            waiting += interpreters
            yield from interpreters
        elif loader := loader_of(here):
            yield loader


def _is_of_system(path: str) -> bool:
    real = followed(path) or path
    return real == _INTERPRETER or any(is_at_or_below(real, root) for root in _ROOTS)


def _interpreters(header: bytes) -> Iterator[str]:
    """Yield the interpreter of a script, and the program that it names for ``env``."""
    words = header[2:].split(b"\n", 1)[0].decode("utf-8", "surrogateescape").split()
    if not words or not words[0].startswith("/"):
        return
    yield words[0]
    if words[0].rpartition("/")[2] == "env":
        names = (word for word in words[1:] if not word.startswith("-") and "=" not in word)
        yield from (place for place in program_places(next(names, "/")) if is_kind(place, S_ISREG))


def loader_of(path: str) -> str:
    """Return the loader that an ELF program names; empty for a static program and for any other file."""
    header = _read(path, _HEADER)
    for magic, place, place_at, counts, counts_at, field, offset_at, size_at in _LAYOUTS:
        if not header.startswith(magic):
            continue
        try:
            (start,) = unpack_from(place, header, place_at)
            size, number = unpack_from(counts, header, counts_at)
            table = _read(path, size * min(number, _MOST_SEGMENTS), start)
            for segment in range(0, len(table), size or 1):
                if unpack_from("<I", table, segment)[0] == _INTERPRETER_SEGMENT:
                    (at,) = unpack_from(field, table, segment + offset_at)
                    (length,) = unpack_from(field, table, segment + size_at)
                    name = _read(path, min(length, _LONGEST_PATH), at).split(b"\0", 1)[0]
                    return name.decode("utf-8", "surrogateescape") if name.startswith(b"/") else ""
        except StructError:
            return ""
    return ""


def _parts(place: str) -> Iterator[str]:
    """Yield the folders with the parts of a program of the system; nothing for other programs."""
    if not _is_of_system(place):
        return
    for name in dict.fromkeys((place.rpartition("/")[2], (followed(place) or place).rpartition("/")[2])):
        yield from (folder for folder in (form.format(name) for form in _PART_FOLDERS) if is_kind(folder, S_ISDIR))


def _read(path: str, size: int, offset: int = 0) -> bytes:
    """Return a part of a file; empty if it cannot be read."""
    try:
        descriptor = open_file(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    except (OSError, ValueError):
        return b""
    try:
        return pread(descriptor, size, offset)
    except (OSError, OverflowError):
        return b""
    finally:
        close(descriptor)
