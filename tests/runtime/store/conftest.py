"""Both databases for the contract suite of the runtime's store."""

from __future__ import annotations

import shutil

import pytest

from democrai_sandbox.runtime.store import open_runtime_store
from tests.access.store.samples import sql
from tests.services.postgres import postgres_server

TABLES = (
    "runtime_tasks, runtime_schedules, runtime_mcp_servers, runtime_engine_settings, "
    "runtime_shadow_findings, runtime_shadow_runs"
)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """A database with its schema and no rows."""
    if request.param == "sqlite":
        shutil.copy(request.getfixturevalue("prepared_file"), tmp_path / "access.db")
        return f"sqlite:///{tmp_path}/access.db"
    prepared = request.getfixturevalue("prepared_database")
    sql(prepared, f"TRUNCATE {TABLES}")
    return prepared


@pytest.fixture
def store(url):
    store = open_runtime_store(url)
    yield store
    store.close()


@pytest.fixture
def other(store, url):
    """The same database, as another node sees it."""
    other = open_runtime_store(url)
    yield other
    other.close()
