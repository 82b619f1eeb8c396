"""Transactions: locks, retries, and errors of an unavailable database."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError, StatementError
from sqlalchemy.exc import TimeoutError as SQLAlchemyTimeout

from democrai_sandbox.errors import StoreBusy, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError

from .engines import CONNECTIONS, PATIENCE, close_engine, make_engine, writing
from .files import DatabaseFile
from .turnstile import Turnstile
from .urls import POSTGRESQL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import URL, Connection
    from sqlalchemy.engine.interfaces import IsolationLevel

T = TypeVar("T")

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
        self._connections = Turnstile(connections)
        # SQLite allows one writer, and would wait by sleeping and retrying.
        self._writers = Turnstile(connections if self.is_postgresql else 1)

    def act(self, work: Callable[[Connection], T]) -> T:
        """Run a function that changes data: all changes are on the disk afterwards, or none.

        A function that lost a race against another transaction runs again.
        """
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
        with self._connection() as connection, writing(connection).begin():
            return work(connection)

    @contextmanager
    def _entered(self, turnstile: Turnstile) -> Iterator[None]:
        """Hold one of the process's connections, or SQLite's write slot."""
        with ExitStack() as held:
            try:
                held.enter_context(turnstile.entered(PATIENCE))
            except TimeoutError:
                if turnstile is self._writers and not self.is_postgresql:
                    raise StoreUnavailable from TimeoutError(f"another write took longer than {PATIENCE} s")
                raise StoreBusy(self._most) from TimeoutError(
                    f"all {self._most} connections of this process were in use for {PATIENCE} s; "
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
