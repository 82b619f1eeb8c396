"""Both databases for the store's contract suite: what is promised holds in each."""

from __future__ import annotations

import shutil

import pytest

from democrai_sandbox.access.store import open_store
from tests.access.store.samples import sql
from tests.services.postgres import postgres_server


@pytest.fixture(params=["sqlite", "postgresql"])
def kind(request):
    return request.param


@pytest.fixture
def empty_url(kind, request, tmp_path):
    """A database with nothing in it."""
    if kind == "sqlite":
        return f"sqlite:///{tmp_path}/access.db"
    return request.getfixturevalue("postgres").new_database()


@pytest.fixture
def url(kind, request, tmp_path):
    """A database with its schema and no rows, for tests that leave the schema as it is."""
    if kind == "sqlite":
        shutil.copy(request.getfixturevalue("prepared_file"), tmp_path / "access.db")
        return f"sqlite:///{tmp_path}/access.db"
    prepared = request.getfixturevalue("prepared_database")
    tables = ", ".join(f"access_{name}" for name in ("requests", "decisions", "resumes", "audit", "ended_sessions"))
    sql(
        prepared,
        "ALTER TABLE access_audit DISABLE TRIGGER USER",
        f"TRUNCATE {tables}",
        "ALTER TABLE access_audit ENABLE TRIGGER USER",
        "UPDATE access_meta SET generation = 0, audit_sequence = 0, audit_hash = ''",
    )
    return prepared


@pytest.fixture
def own_url(kind, request, tmp_path):
    """The same, for tests that do something to the schema."""
    if kind == "sqlite":
        return request.getfixturevalue("url")
    return request.getfixturevalue("postgres").new_database(like=request.getfixturevalue("pattern"))


@pytest.fixture
def store(url):
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
