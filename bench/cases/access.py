"""Access-policy service: checks with few and many decisions, files allowed by approval, start, new requests."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from itertools import count, cycle, islice, repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.cases.files import open_loop
from bench.decisions import APPROVED_URL, DENIED_URL, UNDECIDED_URL, Database, connect, find_database, other_url
from bench.registry import SHORT_PARTS, Case, Sweep, add

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.clients import Ask
    from bench.fixture import Fixture
    from bench.registry import Loop

    Question = tuple[str, str, str]
    Questions = Callable[[Fixture], Iterator[Question]]

DECISIONS = (10, 100, 1_000, 10_000, 100_000)
USUAL = Database(1_000)
APPROVED_URLS = (APPROVED_URL, *map(other_url, range(3, 10)))
QUICKER = 3.0
"""Required ratio of the reference product's warm check to ours."""
COLD_SECONDS = 1.0
COLD = {
    "100,000 of 100 subjects": Database(100_000, subjects=100),
    "100,000 of the one that asks": Database(100_000),
    "100,000 in PostgreSQL": Database(100_000, "postgresql", subjects=100),
}
PATIENCE = 60
_READ = "SELECT id, target, effect, scope, session_key, expires_at FROM access_decisions WHERE ended_at IS NULL"


def _check(
    questions: Questions, database: Database, *, allowed: bool, guarded: bool = False
) -> Callable[[Fixture], Loop]:
    """Check in turns, with everything warm; fail on a wrong answer."""

    def prepare(bed: Fixture) -> Loop:
        ask = bed.asker(database, guarded=guarded)
        asked = questions(bed)

        def loop(turns: int) -> int:
            some = list(islice(asked, turns))
            start = perf_counter_ns()
            for question in some:
                answer = ask(*question)
            elapsed = perf_counter_ns() - start
            if bed.guarded and answer.allowed is not allowed:
                raise AssertionError(f"{question} was answered with {answer}")
            return elapsed

        return loop

    return prepare


def _urls(*urls: str) -> Questions:
    return lambda _: cycle([("network", "receive", url) for url in urls])


def _file(bed: Fixture) -> Iterator[Question]:
    return repeat(("filesystem", "read", str(bed.ground.approved)))


_new_urls = (("network", "receive", f"https://new{number}.example.org/v1/items") for number in count())
"""Shared by all cases of a worker, so that no answer is cached for another case."""


def _register_checks() -> None:
    """Add a row for each kind of answer; the host checks for a subject, and in the last row guarded code for itself."""
    kinds: dict[str, tuple[Questions, bool]] = {
        "approved URL": (_urls(APPROVED_URL), True),
        "denied URL": (_urls(DENIED_URL), False),
        "undecided URL": (_urls(UNDECIDED_URL), False),
        "approved file": (_file, True),
    }
    for kind, (questions, allowed) in kinds.items():
        prepare = _check(questions, USUAL, allowed=allowed)
        add(Case(f"access check, {kind}", prepare, cheaper=QUICKER, wrapped=False, database=USUAL))
    # A file: for an approved URL, the reference product sometimes writes to a path that its guard denies.
    inside = _check(_file, USUAL, allowed=True, guarded=True)
    add(Case("access check inside a guard, approved file", inside, cheaper=QUICKER, database=USUAL))


def _register_sweep(title: str, questions: Questions, *, allowed: bool) -> None:
    for decisions in DECISIONS:
        database = Database(decisions)
        add(
            Case(
                f"{title}, {decisions} decisions",
                _check(questions, database, allowed=allowed),
                wrapped=False,
                sweep=Sweep(f"{title} by decisions", decisions),
                parts=SHORT_PARTS,
                database=database,
            )
        )


def _open_approved(bed: Fixture) -> Loop:
    """Open a file that only an approval allows; checked once, because the activation caches the result."""
    bed.asker(USUAL, guarded=True)
    return open_loop(str(bed.ground.approved))


def _open_approved_first(bed: Fixture) -> Loop:
    """Enter a guard, open the file once and leave, so that each open is checked."""
    bed.asker(USUAL, guarded=True)
    guard = bed.guard()
    path = str(bed.ground.approved)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            with guard:
                open(path).close()
        return perf_counter_ns() - start

    return loop


def _cold(database: Database) -> Callable[[Fixture], Loop]:
    """Start a node in a new process; without a service, only read the rows."""

    def prepare(bed: Fixture) -> Loop:
        url = find_database(database, bed.ground)
        if not bed.guarded:
            return _reading(url)

        def loop(turns: int) -> int:
            return sum(_cold_start(url) for _ in range(turns))

        return loop

    return prepare


def _cold_start(url: str) -> int:
    command = [sys.executable, "-m", "bench.coldstart", url]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    if done.returncode != 0:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1])
    return int(done.stdout)


def _reading(url: str) -> Loop:
    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            connection = connect(url)
            connection.execute(_READ).fetchall()
            connection.close()
        return perf_counter_ns() - start

    return loop


def _registration(bed: Fixture) -> Loop:
    """File a new request each time; without a service, insert a row with the same durability."""
    ask = bed.asker(USUAL) if bed.guarded else _inserting(str(bed.ground.temp / f"rows-{os.getpid()}"))
    # Other processes have filed requests in the same database.
    urls = (f"https://new{number}.example.org/{os.getpid()}" for number in count())

    def loop(turns: int) -> int:
        some = list(islice(urls, turns))
        start = perf_counter_ns()
        for url in some:
            answer = ask("network", "receive", url, register=True)
        elapsed = perf_counter_ns() - start
        if bed.guarded and not answer.requires_approval:
            raise AssertionError(f"{url} was answered with {answer}")
        return elapsed

    return loop


def _inserting(path: str) -> Ask:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", "CREATE TABLE rows (target TEXT)"):
        connection.execute(statement)

    def insert(resource_type: str, operation: str, target: str, *, register: bool = False) -> object:
        del resource_type, operation, register
        return connection.execute("INSERT INTO rows VALUES (?)", (target,))

    return insert


_register_checks()
add(Case("open+close, approved file", _open_approved, limit=1.5, cheaper=QUICKER, database=USUAL))
add(Case("enter, open+close approved file, leave", _open_approved_first, cheaper=10.0, wrapped=False, database=USUAL))
add(Case("file a request (to an insert)", _registration, wrapped=False, database=USUAL))
for title, database in COLD.items():
    add(
        Case(
            f"cold start, {title} (to reading)",
            _cold(database),
            wrapped=False,
            reference=False,
            parts=2,
            database=database,
            within=COLD_SECONDS,
            samples=4,
        )
    )
_register_sweep("access check (to urlsplit)", _urls(*APPROVED_URLS), allowed=True)
# Nothing is cached about these: each is read and looked up for the first time.
_register_sweep("access check, a new URL each time (to urlsplit)", lambda _: _new_urls, allowed=False)
