"""Database engines for SQLite and PostgreSQL: connections, timeouts, start of a transaction."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.event import registry

from democrai_sandbox.policy import InvalidInputError

from .files import is_database
from .urls import POSTGRESQL, SQLITE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import URL
    from sqlalchemy.pool import ConnectionPoolEntry

PATIENCE = 5
"""Timeout in seconds for a connection, a free one of the pool, a lock and a statement."""

CONNECTIONS = 16
"""Default number of connections per process. Writes queue behind one row anyway, so more connections would only wait in
the server instead of here."""

_WRITE = "access_write"
_FILE_MODE = 0o600


def make_engine(url: URL, connections: int = CONNECTIONS) -> Engine:
    """Return an engine without opening a connection."""
    make = _sqlite_engine if url.get_backend_name() == SQLITE else _postgresql_engine
    engine = make(url, connections)
    event.listen(engine, "checkout", _unregister)
    _unlist(engine)
    return engine


def _unregister(_connection: Any, _record: ConnectionPoolEntry, proxy: Any) -> None:
    """Remove a connection in use from the global finalizers, through which guarded code could find the pool.

    The finalizer is not needed, because ``Database`` returns each connection.
    """
    finalizer = getattr(proxy, "_finalizer", None)
    if finalizer is not None:
        finalizer.detach()


def _unlist(engine: Engine) -> None:
    """Remove the engine's listeners from SQLAlchemy's global registry, which is needed only for removing a listener.

    Some listeners reference the engine, and guarded code could import the registry and reach connections.
    """
    its_own = {id(engine), id(engine.pool), id(engine.dialect)}
    for key in [key for key in list(registry._key_to_collection) if key[0] in its_own]:  # noqa: SLF001 - no other way
        for collection in registry._key_to_collection.pop(key, {}):  # noqa: SLF001
            registry._collection_to_key.pop(collection, None)  # noqa: SLF001


def close_engine(engine: Engine) -> None:
    """Close all connections and remove the listeners of the old and new pool from SQLAlchemy's global registry."""
    replaced = engine.pool
    engine.dispose()
    dispatches: list[Any] = [replaced.dispatch, engine.pool.dispatch]
    own = {id(one) for dispatch in dispatches for one in dispatch._event_descriptors}  # noqa: SLF001
    for reference in list(registry._collection_to_key):  # noqa: SLF001 - no other way
        if id(reference()) in own:
            registry._collection_to_key.pop(reference, None)  # noqa: SLF001


def writing(connection: Connection) -> Connection:
    """Mark a connection as writing, before its transaction starts."""
    return connection.execution_options(**{_WRITE: True})


@contextmanager
def unhurried(connection: Connection) -> Iterator[None]:
    """Disable the timeouts for this transaction."""
    if connection.dialect.name != POSTGRESQL:
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.patience = None
    try:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        yield
    finally:
        del driver.patience


def _sqlite_engine(url: URL, connections: int) -> Engine:
    path = str(url.database)
    _keep_private(path)
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=PATIENCE,
        connect_args={"timeout": PATIENCE, "check_same_thread": False, "isolation_level": None},
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _keep_private(path: str) -> None:
    """Create the file, or make it readable by its owner only; SQLite gives its side files the same mode.

    The file is not opened for this: closing it would release the locks of other connections in this process, and
    another process could then remove the log while they use it.
    """
    with suppress(FileExistsError):
        os.mknod(path, stat.S_IFREG | _FILE_MODE)
    if not Path(path).is_file():
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
    if stat.S_IMODE(Path(path).stat().st_mode) != _FILE_MODE:
        _check_database(path)
        Path(path).chmod(_FILE_MODE)


def _check_database(path: str) -> None:
    """Refuse a file that is not a database, so that a typo in root's configuration does not make it inaccessible.

    No connection of this process has it open, because the file would be private already.
    """
    with Path(path).open("rb") as file:
        found = is_database(file)
    if not found:
        raise OSError(errno.EINVAL, "not a SQLite database", path)


def _prepare_sqlite(connection: Any, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    try:
        # FULL: an acknowledged commit is on the disk, also with a write-ahead log.
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF"):
            cursor.execute(f"PRAGMA {pragma}")
    finally:
        cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # Take the write lock at the start: a transaction that reads first and then writes could not wait for it.
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _postgresql_engine(url: URL, connections: int) -> Engine:
    settings = {
        "connect_timeout": PATIENCE,
        "keepalives_idle": PATIENCE,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": PATIENCE * 1000,
    }
    try:
        from .patience import PatientConnection  # noqa: PLC0415 - psycopg is an extra

        engine = create_engine(
            url,
            hide_parameters=True,
            pool_size=connections,
            max_overflow=0,
            pool_timeout=PATIENCE,
            pool_pre_ping=True,
            # Set the encoding explicitly, because for some databases the driver would return bytes instead of text.
            connect_args={name: value for name, value in settings.items() if name not in url.query}
            | {"client_encoding": "utf8"},
        )
    except ImportError as error:
        message = "PostgreSQL needs the package psycopg; install democrai-sandbox[postgres]"
        raise InvalidInputError.of(message, pointer="/url") from error
    event.listen(
        engine, "do_connect", lambda _dialect, _record, words, names: PatientConnection.connect(*words, **names)
    )
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: Any, _record: ConnectionPoolEntry) -> None:
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    with connection.cursor() as cursor:
        for limit in limits:
            cursor.execute(f"SET {limit} = '{PATIENCE}s'")
    connection.commit()
