"""One act, one transaction: locks, retries, and what a failing database looks like from outside."""

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
"""PostgreSQL's names for: serialisation failure, deadlock, unique violation."""


class Database:
    """Runs pieces of work, each in a transaction of its own. Safe to use from many threads."""

    def __init__(self, url: URL, connections: int = CONNECTIONS) -> None:
        """Prepare connections to a database, so many at most; none is made yet."""
        self.url = url
        self.is_postgresql = url.get_backend_name() == POSTGRESQL
        with unavailable():
            self._engine = make_engine(url, connections)
            self._file = None if self.is_postgresql else DatabaseFile(str(url.database))
        self._most = connections
        self._connections = Turnstile(connections)
        # SQLite has one writer, and its own way of waiting is to sleep and try again.
        self._writers = Turnstile(connections if self.is_postgresql else 1)

    def act(self, work: Callable[[Connection], T]) -> T:
        """Do what changes something: all of it is on the disk afterwards, or nothing is.

        Work that lost a race against another transaction is done again from its beginning.
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
        """Do what only reads, with all of its statements seeing the same state."""
        with unavailable(), self._connection("REPEATABLE READ") as connection:
            return work(connection)

    def ask(self, work: Callable[[Connection], T]) -> T:
        """Do what reads with a single statement: no transaction has to be opened for it at the server."""
        with unavailable(), self._connection("AUTOCOMMIT") as connection:
            return work(connection)

    def close(self) -> None:
        """Let all connections go."""
        close_engine(self._engine)

    def _act_once(self, work: Callable[[Connection], T]) -> T:
        with self._connection() as connection, writing(connection).begin():
            return work(connection)

    @contextmanager
    def _entered(self, turnstile: Turnstile) -> Iterator[None]:
        """Hold one of the connections of this process, or the one place of a writer to SQLite."""
        with ExitStack() as held:
            try:
                held.enter_context(turnstile.entered(PATIENCE))
            except TimeoutError:
                if turnstile is self._writers and not self.is_postgresql:
                    raise StoreUnavailable from TimeoutError(f"another write took longer than {PATIENCE} s")
                raise StoreBusy(self._most) from TimeoutError(
                    f"all {self._most} connections of this process were in use for {PATIENCE} s: "
                    "raise database.connections"
                )
            yield

    @contextmanager
    def _connection(self, isolation: IsolationLevel | None = None) -> Iterator[Connection]:
        if self._file is not None:
            self._file.check()
        with self._entered(self._connections), self._engine.connect() as connection:
            # Only PostgreSQL is told: every transaction of SQLite sees one state from its first statement on.
            if isolation and self.is_postgresql:
                connection.execution_options(isolation_level=isolation)
            yield connection


@contextmanager
def unavailable() -> Iterator[None]:
    """Turn every failure of the database into the one error that says that nothing was decided.

    A value that never got there, because it is of the wrong type for its column, is the caller's mistake.
    """
    try:
        yield
    except (DBAPIError, SQLAlchemyTimeout, OSError) as error:
        raise StoreUnavailable from error
    except StatementError as error:
        # Its text has the statement in it, which is nobody's business.
        raise InvalidInputError.of(f"a value is of the wrong type: {error.orig}") from None


def _lost_race(error: DBAPIError) -> bool:
    if isinstance(error, IntegrityError):
        return True
    return getattr(error.orig, "sqlstate", None) in _LOST_RACES
