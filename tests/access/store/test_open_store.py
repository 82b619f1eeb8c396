"""Database URLs and connections: permissions, validation and hidden secrets."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from itertools import product

import psycopg
import pytest
from sqlalchemy.event import registry

from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.store.database_location import parse_url, shown_url
from democrai_sandbox.access.store.schema import peek_schema, upgrade_schema
from democrai_sandbox.errors import InvalidInputError, StateUnusable, StoreUnavailable
from tests.access.forked_programs import Started
from tests.access.store.samples import NOW, approval, live, request
from tests.services.golden import sentence
from tests.services.rows import rows

PASSWORD = "s3cr3t-w0rd"


@rows(
    ("url", "reason", "suggestion"),
    [
        ("", "no URL", None),
        ("nonsense", "no URL", None),
        (None, "no URL", None),
        (7, "no URL", None),
        ("postgresql://u:p@h:port/d", "no URL", None),
        ("mysql://u@h/d", "another database", None),
        ("postgres://u@h/d", "a misspelt database", "postgresql"),
        ("postgresql+asyncpg://u@h/d", "another driver", "postgresql"),
        ("sqllite:///x.db", "another misspelt database", "sqlite"),
        ("sqlite://", "no file", None),
        ("sqlite:///:memory:", "no file", None),
        ("sqlite:///file:x.db", "no file", None),
        ("sqlite://host/x.db", "a host", None),
        ("sqlite:///x.db?mode=ro", "options", None),
        ("sqlite:////no/such/folder/x.db", "no folder", None),
    ],
)
def test_urls_that_mean_nothing_are_refused(url, reason, suggestion):
    """The error contains the reason and the pointer of the URL."""
    with pytest.raises(InvalidInputError) as caught:
        open_store(url)
    (problem,) = caught.value.problems
    assert (problem.pointer, problem.suggestion) == ("/url", suggestion)
    sentence(reason, problem.message)


@rows(
    "url",
    [
        f"postgresql://ann:{PASSWORD}@host:99999/db",
        f"postgresql://ann:{PASSWORD}@host:port/db",
        f"mysql://ann:{PASSWORD}@host/db",
        f"sqlite://ann:{PASSWORD}@host/db",
        f"postgresql://ann:{PASSWORD}@127.0.0.1:1/db",
        f"postgresql://ann@127.0.0.1:1/db?password={PASSWORD}",
    ],
)
def test_a_password_is_in_no_error(url):
    """Neither the text nor the causes contain it, so that errors can be logged."""
    with pytest.raises((InvalidInputError, StoreUnavailable)) as caught:
        open_store(url)
    error = caught.value
    while error is not None:
        assert PASSWORD not in f"{error} {error!r}"
        error = error.__cause__


def test_the_url_is_shown_without_secrets():
    """The URL keeps its original form, so that it can be recognized."""
    url = parse_url(f"postgresql://ann:{PASSWORD}@host:5433/db?sslmode=require&sslpassword={PASSWORD}")
    shown = shown_url(url)
    assert PASSWORD not in shown
    assert shown.startswith("postgresql://ann:***@host:5433/db?sslmode=require&sslpassword=")


def test_the_files_of_sqlite_are_the_owners(tmp_path):
    """The mode does not depend on the umask, and an existing wider mode is corrected."""
    path = tmp_path / "access.db"
    path.touch(mode=0o666)
    before = os.umask(0)
    try:
        store = open_store(f"sqlite:///{path}")
        store.decide(approval(), now=NOW)
        modes = {entry.name: stat.S_IMODE(entry.stat().st_mode) for entry in tmp_path.iterdir()}
        store.close()
    finally:
        os.umask(before)
    assert modes == {"access.db": 0o600, "access.db-wal": 0o600, "access.db-shm": 0o600}


def test_opening_a_database_twice_leaves_its_locks(tmp_path, database):
    """A second store in the process does not release the locks of the first."""
    first, leaves = open_store(database), tmp_path / "leaves.py"
    first.decide(approval("/a"), now=NOW)
    second = open_store(database)
    leaves.write_text(
        "from democrai_sandbox.access.store import open_store; import sys; open_store(sys.argv[1]).close()"
    )
    assert Started(leaves, database).finish(60) == 0
    assert (tmp_path / "access.db-wal").exists()
    second.decide(approval("/b"), now=NOW)
    assert [row[0] for row in live(first)] == ["/a", "/b"]
    for store in (first, second):
        store.close()


def test_what_is_no_file_is_left_as_it_is(tmp_path):
    """A folder with the name of the database keeps its mode."""
    (tmp_path / "access.db").mkdir(mode=0o755)
    with pytest.raises(StoreUnavailable):
        open_store(f"sqlite:///{tmp_path}/access.db")
    assert stat.S_IMODE((tmp_path / "access.db").stat().st_mode) == 0o755


def test_sqlite_is_told_to_keep_what_was_acknowledged(database):
    """Write-ahead log, full synchronization and foreign keys are set on every connection."""
    store = open_store(database)
    names = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")

    def settings(connection):
        return [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in names]

    assert store.database.ask(settings) == ["wal", 2, 1, 5000]
    store.close()


def test_a_database_that_cannot_hold_every_text_is_refused(postgres):
    """The error names the encoding and the fix; nothing is created for any options of the URL."""
    name = f"ascii_{os.getpid()}"
    postgres.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    urls = (postgres.url(name), f"{postgres.url(name)}&client_encoding=sql_ascii")
    for act, url in product((open_store, upgrade_schema, peek_schema), urls):
        with pytest.raises(StateUnusable, match=r"\bSQL_ASCII\b.*\bUTF8\b") as caught:
            act(url)
        assert "ENCODING 'UTF8' TEMPLATE template0" in caught.value.fix
    with psycopg.connect(postgres.url(name), client_encoding="utf8") as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_postgresql_is_told_how_long_to_wait(prepared_database):
    """Statements, locks and open transactions have a timeout."""
    store = open_store(prepared_database)
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")

    def settings(connection):
        return [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]

    assert store.database.ask(settings) == ["5s", "5s", "5s"]
    store.close()


def listed(engine):
    """Return the parts of an engine in SQLAlchemy's global listener registry, which guarded code can import."""
    targets = {id(engine), id(engine.pool), id(engine.dialect)}
    own = [one for part in (engine, engine.pool) for one in part.dispatch._event_descriptors]
    kept = [reference() for reference in registry._collection_to_key]
    assert kept
    return [key for key in registry._key_to_collection if key[0] in targets] + [
        one for one in kept if any(one is other for other in own)
    ]


def test_no_module_leads_to_the_connections(own_store):
    """Some listeners reference their engine."""
    own_store.decide(approval(), now=NOW)
    assert not listed(own_store.database._engine)


def test_no_module_leads_to_the_connections_of_a_closed_store(own_store):
    """Closing replaces the pool, and the engine could open a connection again."""
    replaced = own_store.database._engine.pool
    own_store.close()
    engine = own_store.database._engine
    assert engine.pool is not replaced
    assert not listed(engine)


def test_what_was_stored_is_there_after_opening_again(store, url):
    """The order of generations stays the same."""
    asked = store.register(request(), now=NOW).request_id
    store.decide(approval(request_id=asked), now=NOW)
    store.close()
    again = open_store(url)
    assert (live(again), again.generation()) == ([("/srv/data", "approval", "")], 1)
    again.close()


def test_packages_are_loaded_when_they_are_needed_and_a_missing_one_is_named(database):
    """Values need no SQLAlchemy, and a store needs no Alembic; without psycopg the error says what to install."""
    code = (
        "import sys\n"
        "sys.modules['psycopg'] = None\n"
        "import democrai_sandbox.access.values, democrai_sandbox.access.caller\n"
        "import democrai_sandbox.access.audit\n"
        "print('sqlalchemy' in sys.modules)\n"
        "from democrai_sandbox.access.store import open_store\n"
        "open_store(sys.argv[1]).close()\n"
        "print('alembic' in sys.modules)\n"
        "try: open_store('postgresql://u@h/d')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    command = [sys.executable, "-c", code, database]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    *loaded, error = done.stdout.splitlines()
    assert loaded == ["False", "False"]
    assert error.startswith("InvalidInputError")
    assert "democrai-sandbox[postgres]" in error


def test_somebody_elses_file_is_left_as_it_is(tmp_path):
    """A text file that a typo names as the database keeps its mode and content."""
    text = tmp_path / "passwd"
    text.write_text("root:x:0:0")
    text.chmod(0o644)
    with pytest.raises(StoreUnavailable):
        open_store(f"sqlite:///{text}")
    assert (stat.S_IMODE(text.stat().st_mode), text.read_text()) == (0o644, "root:x:0:0")
