"""Both databases for the store's contract tests."""

from __future__ import annotations

import shutil

import pytest

from democrai_sandbox.access.store import open_store


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request):
    return request.param


@pytest.fixture
def empty_url(kind, request, tmp_path):
    """Empty database."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/access.db"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def url(kind, request, tmp_path):
    """Database with its schema and no rows, for tests that do not change the schema."""
    if kind == "sqlite":
        shutil.copy(request.getfixturevalue("prepared_file"), tmp_path / "access.db")
        return f"sqlite:///{tmp_path}/access.db"
    request.getfixturevalue("lasting_store").database.act(emptied)
    return request.getfixturevalue("prepared_database")


def emptied(connection):
    """Delete all rows of a PostgreSQL database."""
    tables = ", ".join(f"access_{name}" for name in ("requests", "decisions", "resumes", "audit", "ended_sessions"))
    for statement in (
        "ALTER TABLE access_audit DISABLE TRIGGER USER",
        f"TRUNCATE {tables}",
        "ALTER TABLE access_audit ENABLE TRIGGER USER",
        "UPDATE access_meta SET generation = 0, audit_sequence = 0, audit_hash = ''",
    ):
        connection.exec_driver_sql(statement)


@pytest.fixture(scope="session")
def lasting_store(prepared_database):
    """PostgreSQL store that tests share; it is emptied for each of them."""
    store = open_store(prepared_database)
    yield store
    store.close()


@pytest.fixture
def own_url(kind, request, tmp_path):
    """The same, for tests that change the schema."""
    if kind == "sqlite":
        return request.getfixturevalue("url")
    return request.getfixturevalue("postgres").new_database(like=request.getfixturevalue("pattern"))


@pytest.fixture
def store(kind, url, request):
    """Store without rows."""
    if kind == "postgresql":
        yield request.getfixturevalue("lasting_store")
        return
    store = open_store(url)
    yield store
    store.close()


@pytest.fixture
def own_store(own_url):
    store = open_store(own_url)
    yield store
    store.close()


@pytest.fixture
def other(store, url):
    """The same database, as another node sees it."""
    other = open_store(url)
    yield other
    other.close()
