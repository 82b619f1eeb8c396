"""Consistent copy of a SQLite database in use, written atomically to one file."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

from democrai_sandbox.access.files import whole
from democrai_sandbox.errors import StateUnusable, StoreUnavailable

_PATIENCE = 30.0
_TABLES = "SELECT count(*) FROM sqlite_master"


def copy_database(database: str, target: str) -> int:
    """Copy a database to a new file that only its owner can read; return its size in bytes."""
    place = Path(target)
    try:
        with whole(place, replaces=False) as made:
            try:
                _copy(database, made)
            finally:
                for end in ("-wal", "-shm", "-journal"):
                    made.with_name(made.name + end).unlink(missing_ok=True)
    except FileExistsError:
        raise StateUnusable(f"{place} already exists", fix="name another file, or remove it first") from None
    except OSError as error:
        raise _unusable(place, error) from None
    return place.stat().st_size


def _copy(database: str, made: Path) -> None:
    """Copy in a single step, because a stepwise copy restarts whenever another process writes."""
    try:
        with (
            closing(sqlite3.connect(database, timeout=_PATIENCE)) as source,
            closing(sqlite3.connect(made, timeout=_PATIENCE)) as copy,
        ):
            source.execute("PRAGMA query_only = ON")
            source.execute(_TABLES).fetchone()  # detects a file that is not a database before copying
            source.backup(copy)
            # Without a separate log file, so that restoring the copy means moving one file.
            copy.execute("PRAGMA journal_mode = DELETE")
            found = copy.execute("PRAGMA quick_check").fetchone()[0]
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None  # of the copy; the source is only read
        raise StoreUnavailable from error
    if found != "ok":
        raise StateUnusable(f"the copy of {database} is damaged: {found}", fix="restore an older backup")


def _unusable(place: Path, error: OSError) -> StateUnusable:
    return StateUnusable(f"{place} cannot be written: {error.strerror}", fix="name a file in a writable folder")
