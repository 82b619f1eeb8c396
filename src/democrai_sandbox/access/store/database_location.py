"""Location of a database: its URL, and the identity and copy of a SQLite file."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import IO

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from democrai_sandbox._util.atomic_file import atomic_write
from democrai_sandbox.errors import StateUnusable, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError, nearest

SQLITE = "sqlite"
POSTGRESQL = "postgresql"
_DRIVERS = MappingProxyType(
    {SQLITE: SQLITE, POSTGRESQL: "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}
)
_POINTER = "/url"


def parse_url(text: str, *, must_exist: bool = False, needs_folder: bool = True) -> URL:
    """Return the URL with its driver, or reject it. Errors do not contain the URL, which may include a password.

    ``must_exist`` rejects a missing file; a server is not contacted. Without ``needs_folder``, the folder of the file
    may still be missing.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        message = "expected a database URL, such as sqlite:////var/lib/app/access.db or postgresql://user@host/name"
        raise InvalidInputError.of(message, pointer=_POINTER) from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        guess = nearest(url.drivername, (SQLITE, POSTGRESQL))
        message = f"the database {url.drivername!r} is not supported; use sqlite or postgresql"
        raise InvalidInputError.of(message, pointer=_POINTER, suggestion=guess)
    if driver != SQLITE:
        return url.set(drivername=driver)
    _check_file(url, must_exist=must_exist)
    folder = Path(str(url.database)).parent
    if needs_folder and not folder.is_dir():
        raise InvalidInputError.of(f"the folder {str(folder)!r} for the database does not exist", pointer=_POINTER)
    return url


def shown_url(url: URL) -> str:
    """Return the URL in its original form, without secrets."""
    query = {name: "***" if is_secret(name) else value for name, value in url.query.items()}
    return url.set(drivername=url.get_backend_name(), query=query).render_as_string(hide_password=True)


def is_secret(option: str) -> bool:
    """Return whether an option of a URL contains a secret: ``password``, ``sslpassword``, ``oauth_client_secret``."""
    return any(word in option.lower() for word in ("password", "secret"))


def _check_file(url: URL, *, must_exist: bool) -> None:
    if url.host or url.username or url.password or url.port:
        message = "a SQLite URL names a local file: three slashes and a path, or four for an absolute path"
        raise InvalidInputError.of(message, pointer=_POINTER)
    if url.query:
        raise InvalidInputError.of("a SQLite URL cannot have options", pointer=_POINTER)
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise InvalidInputError.of(
            "a SQLite database needs a file, because decisions must outlive the process", pointer=_POINTER
        )
    if must_exist and not Path(url.database).is_file():
        raise InvalidInputError.of(f"the database {url.database!r} does not exist", pointer=_POINTER)


_FRONT = b"SQLite format 3\0"


def is_database(file: IO[bytes]) -> bool:
    """Return whether an open file starts like a SQLite database. An empty file counts as one."""
    return file.read(len(_FRONT)) in (b"", _FRONT)


class DatabaseFile:
    """Database file, identified by device and inode.

    Data written to a removed or replaced file is lost when the process ends, so no decision may be stored in it. The
    new file is not opened either, because the old log might still be next to it; that needs a restart.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._known = self._identity()

    def check(self) -> None:
        """Raise ``OSError`` unless the path still refers to the same file, which may come back."""
        if self._identity() != self._known:
            raise OSError(errno.ESTALE, "the database file was replaced; restore it or restart", str(self._path))

    def _identity(self) -> tuple[int, int]:
        found = self._path.stat()
        return found.st_dev, found.st_ino


_COPY_WAIT_SECONDS = 30.0
_TABLES = "SELECT count(*) FROM sqlite_master"


def copy_database(database: str, target: str) -> int:
    """Copy a database to a new file that only its owner can read; return its size in bytes."""
    place = Path(target)
    try:
        with atomic_write(place, replaces=False) as made:
            try:
                _copy(database, made)
            finally:
                for end in ("-wal", "-shm", "-journal"):
                    made.with_name(made.name + end).unlink(missing_ok=True)
    except FileExistsError:
        raise StateUnusable(f"{place} already exists", fix="name another file, or remove it first") from None
    except OSError as error:
        message = f"{place} cannot be written: {error.strerror}"
        raise StateUnusable(message, fix="name a file in a writable folder") from None
    return place.stat().st_size


def _copy(database: str, made: Path) -> None:
    """Copy in a single step, because a stepwise copy restarts whenever another process writes."""
    try:
        with (
            closing(sqlite3.connect(database, timeout=_COPY_WAIT_SECONDS)) as source,
            closing(sqlite3.connect(made, timeout=_COPY_WAIT_SECONDS)) as copy,
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
