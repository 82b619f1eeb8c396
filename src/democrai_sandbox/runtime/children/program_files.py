"""Files that a child executes to run permitted programs: the programs, their script interpreters, and their loaders.

The functions used here are saved at import, because a subject in the host's process can replace those of the library.
"""

from __future__ import annotations

import sys
from os import O_CLOEXEC, O_NONBLOCK, O_RDONLY, close, pread, stat
from os import open as open_file
from os.path import realpath
from stat import S_ISDIR, S_ISREG
from struct import error as StructError  # noqa: N812 - the only name of a builtin exception here
from struct import unpack_from
from typing import TYPE_CHECKING

from democrai_sandbox.guard.runtime_paths import program_places
from democrai_sandbox.policy import Operation, ResourceType, is_at_or_below

from .path_rights import SYSTEM_PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.policy import AccessRule

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
            if _is_kind(place, S_ISREG):
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
    real = realpath(path)
    return real == _INTERPRETER or any(is_at_or_below(real, root) for root in _ROOTS)


def _interpreters(header: bytes) -> Iterator[str]:
    """Yield the interpreter of a script, and the program that it names for ``env``."""
    words = header[2:].split(b"\n", 1)[0].decode("utf-8", "surrogateescape").split()
    if not words or not words[0].startswith("/"):
        return
    yield words[0]
    if words[0].rpartition("/")[2] == "env":
        names = (word for word in words[1:] if not word.startswith("-") and "=" not in word)
        yield from (place for place in program_places(next(names, "/")) if _is_kind(place, S_ISREG))


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
    for name in dict.fromkeys((place.rpartition("/")[2], realpath(place).rpartition("/")[2])):
        yield from (folder for folder in (form.format(name) for form in _PART_FOLDERS) if _is_kind(folder, S_ISDIR))


def _is_kind(path: str, kind: object) -> bool:
    try:
        return bool(kind(stat(path).st_mode))  # type: ignore[operator] # noqa: PTH116 - held by its name
    except (OSError, ValueError):
        return False


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
