"""One PostgreSQL server for all tests of a worker, and databases in it and in files that have their schema already."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest

# Everything is imported where it is used: most tests have no database, and some look at what is loaded.


@pytest.fixture(scope="session")
def postgres():
    """The server; a test that stops or breaks one starts its own."""
    from tests.services.postgres import postgres_server

    with postgres_server() as server:
        yield server


@cache
def migrated_file():
    """Return a database of SQLite that has its schema and no rows: copies are quicker than migrations."""
    from democrai_sandbox.access.store import open_store

    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "sandbox.db")
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def prepared_file():
    """Return that database to tests that copy it."""
    return migrated_file()


@pytest.fixture(scope="session")
def prepared_database(postgres):
    """The same on PostgreSQL, to be emptied and used again: its tests in one worker follow each other."""
    from democrai_sandbox.access.store import open_store

    url = postgres.new_database()
    open_store(url).close()
    return url
