"""Worlds of the runtime tests, with a database that has its schema."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.services.forks import RuntimeCase


class PreparedCase(RuntimeCase):
    """A world whose hosts copy a database that has its schema, which is faster than migrations."""

    forks_workers = True

    def __init__(self, base, database):
        super().__init__(base)
        self.database = base / "prepared.db"  # where a confined host can read it too
        shutil.copyfile(database, self.database)

    def give_tools(self, tools):
        """Provide pip in advance, as after the first installation; no test changes its files."""
        shutil.copytree(tools, self.base / "data" / "installs" / "tools", copy_function=os.link)

    def environment(self, **extra):
        """Return the environment of a body: the path of that database, and no certificates, to save time."""
        return super().environment(**{"PREPARED_DATABASE": str(self.database), "SSL_CERT_FILE": os.devnull, **extra})


class FreshCase(PreparedCase):
    """A world whose workers start as in any host, instead of as forks of a test process."""

    forks_workers = False


class McpCase(PreparedCase):
    """A world with the ``mcp`` library loaded."""

    child = Path(__file__).parent / "mcp" / "child.py"
