"""Check that all code that runs as root is owned by root and writable for root only."""

from __future__ import annotations

import os
import stat
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_MOST_TOLD = 8
_NOT_LOADED = frozenset({"site-packages", "dist-packages", "test", "idlelib", "tkinter", "turtledemo"})
"""Folders of the standard library from which an isolated interpreter (-I -S) or the helper does not load code."""


class Weakness(NamedTuple):
    """File or folder through which another user than root could change the helper's code."""

    path: str
    why: str
    fix: str

    def __str__(self) -> str:
        """Return the problem with its fix."""
        return f"{self.path} {self.why}; to fix it: {self.fix}"


def weaknesses(command: Sequence[str], *, standard_library: str = os.__file__) -> list[Weakness]:
    """Check the interpreter, its library, the helper's folder, and all their ancestor folders."""
    interpreter, helper = Path(command[0]), Path(command[-1]).parent
    library = Path(standard_library).resolve().parent
    found: dict[str, Weakness] = {}
    for path in _all(interpreter, library, helper):
        weakness = _weakness(path)
        if weakness is not None:
            found.setdefault(weakness.path, weakness)
        if len(found) >= _MOST_TOLD:
            break
    return list(found.values())


def _all(interpreter: Path, library: Path, helper: Path) -> Iterator[Path]:
    shared = sysconfig.get_config_var("LDLIBRARY") if sysconfig.get_config_var("Py_ENABLE_SHARED") else None
    extra = [Path(sysconfig.get_config_var("LIBDIR") or "/") / shared] if shared else []
    for start in (interpreter, library, helper, *(path.resolve() for path in extra if path.exists())):
        yield from reversed([start, *start.parents])
    for folder in (library, helper):
        yield from _below(folder)


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _NOT_LOADED]
        yield from _joined(place, folders)
        yield from _joined(place, files)


def _joined(place: str, names: Iterable[str]) -> Iterator[Path]:
    return (Path(place, name) for name in names)


def _weakness(path: Path) -> Weakness | None:
    try:
        found = path.stat()
    except OSError as error:
        return Weakness(str(path), f"cannot be read ({error.strerror})", "run this as root")
    if found.st_uid != 0:
        return Weakness(str(path), f"belongs to user {found.st_uid}", _INSTALL)
    if stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX:
        return None  # sticky: other users can add files, but not move those of root
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and found.st_gid != 0):
        return Weakness(str(path), f"is writable for other users (mode {stat.S_IMODE(found.st_mode):04o})", _INSTALL)
    return None


_INSTALL = "install Python and this package as root into a folder that only root can write, such as /opt"
