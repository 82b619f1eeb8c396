"""Read-only inspection of a database's schema, without creating, changing or locking anything."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import quote

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from .schema import find_schema
from .transactions import Database, unavailable
from .urls import SQLITE, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from .schema import Schema

T = TypeVar("T")

_PATIENCE = 3.0


def peek_schema(url: str) -> Schema:
    """Return the schema of a database; raises ``StoreUnavailable``, also for a missing file."""
    parsed = parse_url(url, needs_folder=False)
    if parsed.get_backend_name() == SQLITE:
        return find_schema(cast("Database", _ReadOnly(str(parsed.database))))
    database = Database(parsed)
    try:
        return find_schema(database)
    finally:
        database.close()


class _ReadOnly:
    """Read-only replacement of ``Database`` for a file. Without a log, the file is opened as immutable."""

    def __init__(self, file: str) -> None:
        self._file = file
        is_alone = not os.path.exists(f"{file}-wal")  # noqa: PTH110 - an inaccessible folder is not an error here
        uri = f"file:{quote(file)}?mode=ro{'&immutable=1' if is_alone else ''}"
        self._engine = create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True, timeout=_PATIENCE), poolclass=NullPool
        )

    def ask(self, work: Callable[[Connection], T]) -> T:
        """Run a read-only function."""
        with unavailable():
            if not S_ISREG(Path(self._file).stat().st_mode):  # opening a pipe would block
                raise OSError(errno.EINVAL, "not a regular file", self._file)
            with self._engine.connect() as connection:
                return work(connection)
