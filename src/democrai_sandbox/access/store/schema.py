"""Schema version of a database: compatibility check, upgrade, and inspection without changes."""

from __future__ import annotations

import errno
import os
import shlex
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from democrai_sandbox.errors import SchemaOutdated, StateUnusable

from .database import Database, unavailable, without_timeout
from .database_location import POSTGRESQL, SQLITE, parse_url, shown_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

HEAD = "0009"
"""Migration that this version needs. Stored here, so that opening a store does not import Alembic."""

VERSION_TABLE = "access_schema"
NODES_TABLE = "access_schema_nodes"
"""Versions whose nodes may use the database, in the column ``version_num``; created with the table above.

An additive migration keeps the previous version on the list, so that nodes can be upgraded one by one. After any other
migration the list contains only the new version.
"""
_BOOKKEEPING = frozenset({VERSION_TABLE, NODES_TABLE})
_ENCODING = "UTF8"
_NOTHING = ""
_UNKNOWN = "unknown"


class Schema(NamedTuple):
    """Schema version of a database, with the compatible versions."""

    version: str
    """Empty for a database without our tables."""
    nodes: frozenset[str]
    """Versions whose nodes may use it: its own, and earlier ones that were only added to."""


def find_schema(database: Database) -> Schema:
    """Return the schema of a database."""
    return database.ask(_found)


def prepare_schema(database: Database) -> None:
    """Create the schema in an empty database; refuse a database that this version does not support."""
    if find_schema(database).version == _NOTHING:
        database.act(partial(_upgraded, versions=frozenset({_NOTHING})))
    check_schema(database)


def check_schema(database: Database) -> Schema:
    """Return the schema if this version supports it; raise ``SchemaOutdated`` otherwise."""
    found = find_schema(database)
    if HEAD in found.nodes:
        return found
    shown = shown_url(database.url)
    message = f"the database {shown} has the schema {found.version or '(none)'}, but {HEAD} is required; "
    if found.version in _older():
        message += f"upgrade it with: democrai-sandbox db upgrade --database {shlex.quote(shown)}"
    else:
        message += "this version of democrai-sandbox does not support it, install a newer one"
    raise SchemaOutdated(message)


def upgrade_schema(url: str) -> str:
    """Upgrade a database to the current schema in one transaction; return its previous version."""
    with closing(Database(parse_url(url))) as database:
        before = database.act(partial(_upgraded, versions=_older()))
        check_schema(database)
    return before


def _upgraded(connection: Connection, versions: frozenset[str]) -> str:
    """Upgrade a schema of one of these versions, unless another process already did; return the version before."""
    with without_timeout(connection):
        # One migration at a time. SQLite's transaction holds the lock already.
        if connection.dialect.name == POSTGRESQL:
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('democrai-sandbox access schema'))"))
        before = _found(connection).version
        if before in versions:
            _upgrade(connection)
    return before


def _found(connection: Connection) -> Schema:
    _check_encoding(connection)
    names = {name for name in inspect(connection).get_table_names() if name.startswith("access_")}
    versions = _listed(connection, VERSION_TABLE) if VERSION_TABLE in names else ()
    if not versions:
        return Schema(_UNKNOWN if names - _BOOKKEEPING else _NOTHING, frozenset())
    nodes = _listed(connection, NODES_TABLE) if NODES_TABLE in names else ()
    # Several versions are invalid, and so is a list without the version itself.
    if len(versions) > 1 or (nodes and versions[0] not in nodes):
        return Schema(", ".join(versions), frozenset())
    return Schema(versions[0], frozenset(nodes or versions))


def _check_encoding(connection: Connection) -> None:
    """Refuse a database that cannot store every text, because targets can use any script."""
    if connection.dialect.name != POSTGRESQL:
        return
    driver: Any = connection.connection.driver_connection
    encoding = driver.info.parameter_status("server_encoding")
    if encoding != _ENCODING:
        raise StateUnusable(
            f"the database {driver.info.dbname} has the encoding {encoding}, but {_ENCODING} is required",
            fix=f"create another one with: CREATE DATABASE ... ENCODING '{_ENCODING}' TEMPLATE template0",
        )


def _listed(connection: Connection, table: str) -> tuple[str, ...]:
    found = connection.execute(text(f"SELECT version_num FROM {table}")).scalars()  # noqa: S608 - a constant
    return tuple(sorted(found))


def _older() -> frozenset[str]:
    from .migrations import known_versions  # noqa: PLC0415 - Alembic is loaded only where there is something to migrate

    return frozenset({_NOTHING, *known_versions()} - {HEAD})


def _upgrade(connection: Connection) -> None:
    from .migrations import upgrade  # noqa: PLC0415 - the same

    upgrade(connection, HEAD)


T = TypeVar("T")

_PEEK_WAIT_SECONDS = 3.0


def peek_schema(url: str) -> Schema:
    """Return the schema of a database; raises ``StoreUnavailable``, also for a missing file."""
    parsed = parse_url(url, needs_folder=False)
    if parsed.get_backend_name() == SQLITE:
        return find_schema(cast("Database", _ReadOnlyDatabase(str(parsed.database))))
    with closing(Database(parsed)) as database:
        return find_schema(database)


class _ReadOnlyDatabase:
    """Read-only replacement of ``Database`` for a file. Without a log, the file is opened as immutable."""

    def __init__(self, file: str) -> None:
        self._file = file
        is_alone = not os.path.exists(f"{file}-wal")  # noqa: PTH110 - an inaccessible folder is not an error here
        uri = f"file:{quote(file)}?mode=ro{'&immutable=1' if is_alone else ''}"
        self._engine = create_engine(
            "sqlite://", creator=lambda: sqlite3.connect(uri, uri=True, timeout=_PEEK_WAIT_SECONDS), poolclass=NullPool
        )

    def ask(self, work: Callable[[Connection], T]) -> T:
        """Run a read-only function."""
        with unavailable():
            if not S_ISREG(Path(self._file).stat().st_mode):  # opening a pipe would block
                raise OSError(errno.EINVAL, "not a regular file", self._file)
            with self._engine.connect() as connection:
                return work(connection)
