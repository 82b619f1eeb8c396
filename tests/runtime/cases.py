"""Worlds of the tests of the runtimes, with a database that has its schema."""

from __future__ import annotations

import shutil

from tests.services.forks import RuntimeCase


class PreparedCase(RuntimeCase):
    """A world whose hosts copy a database that has its schema, which is quicker than migrations."""

    def __init__(self, base, database):
        super().__init__(base)
        self.database = base / "prepared.db"  # where also a host that has confined itself can read it
        shutil.copyfile(database, self.database)

    def environment(self, **extra):
        """Return the environment of a body, which tells where that database is."""
        return super().environment(PREPARED_DATABASE=str(self.database), **extra)
