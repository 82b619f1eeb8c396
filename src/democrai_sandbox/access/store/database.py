"""Database connections and transactions: timeouts, locks, retries, errors of an unavailable database."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import deque
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.event import registry
from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError
from sqlalchemy.exc import TimeoutError as SQLAlchemyTimeout

from democrai_sandbox.errors import StoreBusy, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError

from .database_location import POSTGRESQL, SQLITE, DatabaseFile, is_database

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import URL
    from sqlalchemy.engine.interfaces import IsolationLevel
    from sqlalchemy.pool import ConnectionPoolEntry


class FairSemaphore:
    """Semaphore that passes a released place directly to the first waiting thread."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._free = places
        self._waiting: deque[threading.Event] = deque()

    @contextmanager
    def entered(self, seconds: float) -> Iterator[None]:
        """Hold a place; raises ``TimeoutError`` if none is free in time."""
        self._enter(seconds)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, seconds: float) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Event()
            self._waiting.append(turn)
        try:
            if turn.wait(seconds):
                return
        except BaseException:
            self._give_up(turn)
            raise
        self._give_up(turn)
        raise TimeoutError(f"no free place within {seconds} seconds")

    def _give_up(self, turn: threading.Event) -> None:
        with self._lock:
            if not turn.is_set():
                self._waiting.remove(turn)
                return
        self._leave()  # the place was assigned at the last moment

    def _leave(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._free += 1


TIMEOUT_SECONDS = 5
"""Timeout in seconds for a connection, a free one of the pool, a lock and a statement."""

CONNECTIONS = 16
"""Default number of connections per process. Writes queue behind one row, so more would only wait in the server."""

_WRITE = "access_write"
"""Option that marks a connection as writing, before its transaction starts."""
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


@contextmanager
def without_timeout(connection: Connection) -> Iterator[None]:
    """Disable the timeouts for this transaction."""
    if connection.dialect.name != POSTGRESQL:
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.timeout = None
    try:
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
        connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
        yield
    finally:
        del driver.timeout


def _pool(connections: int) -> dict[str, Any]:
    return {"hide_parameters": True, "pool_size": connections, "max_overflow": 0, "pool_timeout": TIMEOUT_SECONDS}


def _sqlite_engine(url: URL, connections: int) -> Engine:
    path = str(url.database)
    _keep_private(path)
    engine = create_engine(
        url,
        **_pool(connections),
        connect_args={"timeout": TIMEOUT_SECONDS, "check_same_thread": False, "isolation_level": None},
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
    with closing(connection.cursor()) as cursor:
        # FULL: an acknowledged commit is on the disk, also with a write-ahead log.
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", "trusted_schema = OFF"):
            cursor.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    # Take the write lock at the start: a transaction that reads first and then writes could not wait for it.
    write = connection.get_execution_options().get(_WRITE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _postgresql_engine(url: URL, connections: int) -> Engine:
    settings = {
        "connect_timeout": TIMEOUT_SECONDS,
        "keepalives_idle": TIMEOUT_SECONDS,
        "keepalives_interval": 2,
        "keepalives_count": 2,
        "tcp_user_timeout": TIMEOUT_SECONDS * 1000,
    }
    try:
        from .postgresql import TimedConnection  # noqa: PLC0415 - psycopg is an extra

        engine = create_engine(
            url,
            **_pool(connections),
            pool_pre_ping=True,
            # Set the encoding explicitly, because for some databases the driver would return bytes instead of text.
            connect_args={name: value for name, value in settings.items() if name not in url.query}
            | {"client_encoding": "utf8"},
        )
    except ImportError as error:
        message = "PostgreSQL needs the package psycopg; install democrai-sandbox[postgres]"
        raise InvalidInputError.of(message, pointer="/url") from error
    event.listen(engine, "do_connect", lambda _dialect, _record, words, names: TimedConnection.connect(*words, **names))
    event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_postgresql(connection: Any, _record: ConnectionPoolEntry) -> None:
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    with connection.cursor() as cursor:
        for limit in limits:
            cursor.execute(f"SET {limit} = '{TIMEOUT_SECONDS}s'")
    connection.commit()


P = ParamSpec("P")
T = TypeVar("T")

_WAIT_SECONDS = TIMEOUT_SECONDS
_ATTEMPTS = 4
_LOST_RACES = frozenset({"40001", "40P01", "23505"})
"""PostgreSQL error codes: serialization failure, deadlock, unique violation."""


class Database:
    """Run functions, each in a separate transaction. Thread-safe."""

    def __init__(self, url: URL, connections: int = CONNECTIONS) -> None:
        """Prepare up to ``connections`` connections; none is opened yet."""
        self.url = url
        self.is_postgresql = url.get_backend_name() == POSTGRESQL
        with unavailable():
            self._engine = make_engine(url, connections)
            self._file = None if self.is_postgresql else DatabaseFile(str(url.database))
        self._most = connections
        self._connections = FairSemaphore(connections)
        # SQLite allows one writer, and would wait by sleeping and retrying.
        self._writers = FairSemaphore(connections if self.is_postgresql else 1)

    def act(self, work: Callable[[Connection], T]) -> T:
        """Run a function that changes data, again if it lost a race: all changes are on disk afterwards, or none."""
        with unavailable(), self._entered(self._writers):
            for _ in range(_ATTEMPTS - 1):
                try:
                    return self._act_once(work)
                except DBAPIError as error:
                    if not _lost_race(error):
                        raise
            return self._act_once(work)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run a function that only reads, with all statements seeing the same state."""
        with unavailable(), self._connection("REPEATABLE READ") as connection:
            return work(connection)

    def ask(self, work: Callable[[Connection], T]) -> T:
        """Run a function that reads with a single statement, without a transaction."""
        with unavailable(), self._connection("AUTOCOMMIT") as connection:
            return work(connection)

    def close(self) -> None:
        """Close all connections."""
        close_engine(self._engine)

    def _act_once(self, work: Callable[[Connection], T]) -> T:
        with self._connection() as connection, connection.execution_options(**{_WRITE: True}).begin():
            return work(connection)

    @contextmanager
    def _entered(self, semaphore: FairSemaphore) -> Iterator[None]:
        """Hold one of the process's connections, or SQLite's write slot."""
        with ExitStack() as held:
            try:
                held.enter_context(semaphore.entered(_WAIT_SECONDS))
            except TimeoutError:
                if semaphore is self._writers and not self.is_postgresql:
                    raise StoreUnavailable from TimeoutError(f"another write took longer than {_WAIT_SECONDS} s")
                raise StoreBusy(self._most) from TimeoutError(
                    f"all {self._most} connections of this process were in use for {_WAIT_SECONDS} s; "
                    "raise database.connections"
                )
            yield

    @contextmanager
    def _connection(self, isolation: IsolationLevel | None = None) -> Iterator[Connection]:
        if self._file is not None:
            self._file.check()
        with self._entered(self._connections), self._engine.connect() as connection:
            # Only for PostgreSQL: a SQLite transaction sees one state from its first statement on.
            if isolation and self.is_postgresql:
                connection.execution_options(isolation_level=isolation)
            yield connection


class DatabaseStore:
    """Base of a store. Its operations are functions with a connection as first argument, bound by the functions below.

    Synchronous and thread-safe. When the database cannot be reached, operations raise ``StoreUnavailable``.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def close(self) -> None:
        """Close all connections."""
        self.database.close()


def _method(
    work: Callable[Concatenate[Connection, P], T], run: Callable[[Database], Callable[[Callable[[Connection], T]], T]]
) -> Callable[Concatenate[DatabaseStore, P], T]:
    @wraps(work)
    def method(self: DatabaseStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return run(self.database)(lambda connection: work(connection, *args, **kwargs))

    return method


def transaction(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[DatabaseStore, P], T]:
    """Return a method that runs a function with ``Database.act``."""
    return _method(work, lambda database: database.act)


def consistent_read(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[DatabaseStore, P], T]:
    """Return a method that runs a function with ``Database.read``."""
    return _method(work, lambda database: database.read)


def query(work: Callable[Concatenate[Connection, P], T]) -> Callable[Concatenate[DatabaseStore, P], T]:
    """Return a method that runs a function with ``Database.ask``."""
    return _method(work, lambda database: database.ask)


@contextmanager
def unavailable() -> Iterator[None]:
    """Convert every database failure to ``StoreUnavailable``.

    A value of the wrong type for its column never reached the database and is reported as ``InvalidInputError``.
    """
    try:
        yield
    except (DBAPIError, SQLAlchemyTimeout, OSError) as error:
        raise StoreUnavailable from error
    except StatementError as error:
        # Omit the error's full text, which contains the statement.
        raise InvalidInputError.of(f"a value has the wrong type: {error.orig}") from None


def _lost_race(error: DBAPIError) -> bool:
    if isinstance(error, IntegrityError):
        return True
    return getattr(error.orig, "sqlstate", None) in _LOST_RACES
