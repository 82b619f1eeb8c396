"""A copy of a SQLite database, made while it is in use: of one moment, one file, and there only when it is whole."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from democrai_sandbox.errors import StateUnusable, StoreUnavailable

_PATIENCE = 30.0
_TABLES = "SELECT count(*) FROM sqlite_master"


def copy_database(database: str, target: str) -> int:
    """Copy a database to a file that is not there yet, for its owner alone; return how many bytes it has."""
    place = Path(target)
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    except OSError as error:
        raise _unusable(place, error) from None
    os.close(descriptor)
    made = Path(name)
    try:
        _copy(database, made)
        _sync(made)
        # Unlike a rename, a link never replaces what is there.
        place.hardlink_to(made)
        _sync(place.parent)
    except FileExistsError:
        raise StateUnusable(f"{place} is there already", fix="name another file, or remove it first") from None
    except OSError as error:
        raise _unusable(place, error) from None
    finally:
        for left in (made, *(made.with_name(made.name + end) for end in ("-wal", "-shm", "-journal"))):
            with suppress(FileNotFoundError):
                left.unlink()
    return place.stat().st_size


def _copy(database: str, made: Path) -> None:
    """Copy in a single step: one that is made of several begins anew whenever somebody writes in between."""
    try:
        with (
            closing(sqlite3.connect(database, timeout=_PATIENCE)) as source,
            closing(sqlite3.connect(made, timeout=_PATIENCE)) as copy,
        ):
            source.execute("PRAGMA query_only = ON")
            source.execute(_TABLES).fetchone()  # a file that is no database is known before it is copied
            source.backup(copy)
            # The log beside it is no part of the copy: whoever restores it moves one file.
            copy.execute("PRAGMA journal_mode = DELETE")
            found = copy.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        raise StoreUnavailable from error
    if found != "ok":
        raise StateUnusable(f"the copy of {database} is damaged: {found}", fix="restore an older backup")


def _sync(place: Path) -> None:
    descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unusable(place: Path, error: OSError) -> StateUnusable:
    return StateUnusable(f"{place} cannot be written: {error.strerror}", fix="name a file in a folder of yours")
