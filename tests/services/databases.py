"""One PostgreSQL server for all tests of a worker, and databases in it and in files that have their schema already."""

from __future__ import annotations

import pytest

# Everything is imported where it is used: most tests have no database, and some look at what is loaded.


@pytest.fixture(scope="session")
def postgres():
    """The server; a test that stops or breaks one starts its own."""
    from tests.services.postgres import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def prepared_file(tmp_path_factory):
    """A database of SQLite that has its schema: copies are quicker than migrations."""
    from democrai_sandbox.access.store import open_store

    path = tmp_path_factory.mktemp("prepared") / "sandbox.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def prepared_database(postgres):
    """The same on PostgreSQL, to be emptied and used again: its tests in one worker follow each other."""
    from democrai_sandbox.access.store import open_store

    url = postgres.new_database()
    open_store(url).close()
    return url
