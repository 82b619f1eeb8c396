"""Both databases for the contract suite of the runtime's store, each opened once and emptied for every test."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from democrai_sandbox.runtime.store import open_runtime_store

TABLES = (
    *("runtime_tasks", "runtime_schedules", "runtime_mcp_servers", "runtime_engine_settings"),
    *("runtime_shadow_findings", "runtime_shadow_runs", "runtime_models"),
)


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def opened(request, tmp_path_factory):
    """Return the URL of a database with its schema, and the stores of two nodes in it."""
    if request.param == "sqlite":
        folder = tmp_path_factory.mktemp("store")
        shutil.copy(request.getfixturevalue("prepared_file"), folder / "access.db")
        url = f"sqlite:///{folder}/access.db"
    else:
        url = request.getfixturevalue("prepared_database")
    with closing(open_runtime_store(url)) as store, closing(open_runtime_store(url)) as other:
        yield url, store, other


@pytest.fixture
def store(opened):
    """Return the store of a node, without rows."""
    _, store, _ = opened
    with store.database._engine.begin() as connection:
        for table in TABLES:
            connection.exec_driver_sql(f"DELETE FROM {table}")
    return store


@pytest.fixture
def other(store, opened):
    """Return the same database, as another node sees it."""
    return opened[2]


@pytest.fixture
def url(opened):
    """Return the URL of the database."""
    return opened[0]
