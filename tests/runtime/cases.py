"""Worlds of the tests of the runtimes, with a database that has its schema."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.services.forks import RuntimeCase


class PreparedCase(RuntimeCase):
    """A world whose hosts copy a database that has its schema, which is quicker than migrations."""

    forks_workers = True

    def __init__(self, base, database):
        super().__init__(base)
        self.database = base / "prepared.db"  # where also a host that has confined itself can read it
        shutil.copyfile(database, self.database)

    def give_tools(self, tools):
        """Have pip there already, as after the first installation: its files are nobody's to change."""
        shutil.copytree(tools, self.base / "data" / "installs" / "tools", copy_function=os.link)

    def environment(self, **extra):
        """Return the environment of a body: where that database is, and no certificates, which each host would read."""
        return super().environment(**{"PREPARED_DATABASE": str(self.database), "SSL_CERT_FILE": os.devnull, **extra})


class FreshCase(PreparedCase):
    """The same, whose workers are started as those of any host, and are not forks of a process of the tests."""

    forks_workers = False


class McpCase(PreparedCase):
    """The same, with the ``mcp`` library loaded."""

    child = Path(__file__).parent / "mcp" / "child.py"
