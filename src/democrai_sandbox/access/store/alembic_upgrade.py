"""Alembic migrations inside an open transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory

if TYPE_CHECKING:
    from sqlalchemy import Connection

NOTHING = "base"
"""Version before the first migration; migrating to it removes everything."""


def known_versions() -> list[str]:
    """Return all known versions, the newest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]


def nodes_of(scripts: ScriptDirectory, version: str) -> list[str]:
    """Return the versions whose nodes may use a database of this version: back to the last non-additive migration."""
    script = scripts.get_revision(version)
    before = script.down_revision
    if not isinstance(before, str) or not getattr(script.module, "additive", False):
        return [version]
    return [version, *nodes_of(scripts, before)]


def upgrade(connection: Connection, version: str) -> None:
    """Migrate a database up to a version."""
    command.upgrade(_config(connection), version)


def downgrade(connection: Connection, version: str) -> None:
    """Migrate a database down to a version; data that this version does not know is lost."""
    command.downgrade(_config(connection), version)


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "democrai_sandbox.access.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config
