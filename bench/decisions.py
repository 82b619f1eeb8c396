"""Databases full of decisions, created by the driver before any worker starts, and their places."""

from __future__ import annotations

import json
import sqlite3
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from bench.registry import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from bench.workspace import Workspace
    from democrai_sandbox.policy import Subject

SUBJECT = "bench"
APPROVED_URL = "https://approved.example.org/v1/items"
DENIED_URL = "https://denied.example.org/v1/items"
UNDECIDED_URL = "https://undecided.example.org/v1/items"
"""Undecided URL."""

_COLUMNS = (
    *("id", "digest", "subject_kind", "subject_name", "resource_type", "operation", "target", "target_folded"),
    *("effect", "scope", "session_key", "created_at", "created_by", "reason", "generation", "ended_by"),
)
_MADE = 1_767_225_600_000_000
"""Time of all decisions, in microseconds since the epoch."""
_SQLITE = "sqlite:///"
_Decision = tuple[str, str, str, str, str]
"""Name of the subject, resource type, operation, target, effect."""


@dataclass(frozen=True, slots=True)
class Database:
    """Database that a case needs."""

    decisions: int
    """Number of decisions in force."""
    kind: str = "sqlite"
    subjects: int = 1
    """Number of subjects that share them."""

    @property
    def name(self) -> str:
        """Name for files and keys."""
        return f"{self.kind}-{self.decisions}-{self.subjects}"


@contextmanager
def prepared_databases(wanted: Iterable[Database], ground: Workspace) -> Iterator[None]:
    """Create the databases, and store their places or the reasons why they are missing."""
    places = {}
    with ExitStack() as stack:
        server = None
        for database in sorted(set(wanted), key=lambda database: database.name):
            if database.kind == "sqlite":
                url = f"{_SQLITE}{ground.databases / database.name}"
            else:
                server = server or stack.enter_context(_postgres())
                if isinstance(server, str):
                    places[database.name] = {"reason": server}
                    continue
                url = server.new_database()
            _fill(url, _decisions(database, str(ground.approved)))
            places[database.name] = {"url": url}
        ground.databases_file.write_text(json.dumps(places))
        yield


def find_database(database: Database, ground: Workspace) -> str:
    """Return the URL of a database that the driver created."""
    place = json.loads(ground.databases_file.read_text())[database.name]
    if "reason" in place:
        raise UnavailableError(place["reason"])
    return str(place["url"])


@contextmanager
def _postgres() -> Iterator[object]:
    """Run a server, or yield the reason why it is missing."""
    try:
        from tests.services.postgres import PostgresServer, find_programs
    except ImportError as error:
        yield f"{error.name} is not installed: requirements/tests.txt has it"
        return
    programs = find_programs()
    if programs is None:
        yield "PostgreSQL is not installed: the package postgresql has it"
        return
    server = PostgresServer(programs)
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _decisions(database: Database, file: str) -> Iterator[_Decision]:
    """Yield the measured decisions, and then others, a tenth of them denials."""
    yield SUBJECT, "network", "receive", APPROVED_URL, "approval"
    yield SUBJECT, "network", "receive", DENIED_URL, "denial"
    yield SUBJECT, "filesystem", "read", file, "approval"
    for number in range(3, database.decisions):
        subject = SUBJECT + str(number % database.subjects or "")
        yield subject, "network", "receive", other_url(number), "approval" if number % 10 else "denial"


def other_url(number: int) -> str:
    """Return one of many decided URLs."""
    return f"https://api{number}.example.org/v1/items"


def _fill(url: str, decisions: Iterator[_Decision]) -> None:
    """Write the rows without the service, in the fastest way of each database: single decisions would take minutes."""
    from democrai_sandbox.access.store import open_store

    open_store(url).close()
    rows = [_row(number, decision) for number, decision in enumerate(decisions, 1)]
    into = f"access_decisions ({', '.join(_COLUMNS)})"
    connection = connect(url)
    with connection:
        cursor = connection.cursor()
        if isinstance(connection, sqlite3.Connection):
            cursor.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(_COLUMNS))})", rows)
        else:
            with cursor.copy(f"COPY {into} FROM STDIN") as copy:
                for row in rows:
                    copy.write_row(row)
        cursor.execute(f"UPDATE access_meta SET generation = {len(rows)}")
        cursor.execute("ANALYZE")
    connection.close()


def connect(url: str) -> Any:
    """Open a database without the store."""
    if url.startswith(_SQLITE):
        return sqlite3.connect(url.removeprefix(_SQLITE))
    import psycopg

    return psycopg.connect(url)


def _row(number: int, decision: _Decision) -> tuple[object, ...]:
    from democrai_sandbox.access.values import AccessTuple
    from democrai_sandbox.policy import Operation, ResourceType

    name, resource_type, operation, target, effect = decision
    access = AccessTuple(_subject(name), ResourceType(resource_type), Operation(operation), target)
    about = (f"{number:026}", access.digest, "module", name, resource_type, operation, target, target.casefold())
    return (*about, effect, "permanent", "", _MADE, "ada", "", number, "")


@cache
def _subject(name: str) -> Subject:
    from democrai_sandbox.policy import Subject, SubjectKind

    return Subject(SubjectKind.MODULE, name)
