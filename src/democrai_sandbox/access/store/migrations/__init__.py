"""Migrations of the schema: Alembic runs them inside an open transaction, and they share the operations below.

The effect of a released migration never changes, so the results of the operations must stay the same.

A migration is ``additive`` if nodes of the previous version, which do not know it, miss nothing and read no unknown
value afterwards. They may then keep using the database. New tables, indexes and columns with a default are additive;
dropping or renaming a column, or new values in it, are not.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import command, op
from alembic.config import Config
from alembic.script import ScriptDirectory

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


def upgrade(connection: sa.Connection, version: str) -> None:
    """Migrate a database up to a version."""
    command.upgrade(_config(connection), version)


def downgrade(connection: sa.Connection, version: str) -> None:
    """Migrate a database down to a version; data that this version does not know is lost."""
    command.downgrade(_config(connection), version)


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "democrai_sandbox.access.store:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


# ---- operations that migrations share


def is_postgresql() -> bool:
    """Return whether the database is PostgreSQL."""
    return op.get_context().dialect.name == "postgresql"


def big_integer() -> Any:
    """Return the type of 64-bit numbers."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    """Return a column of 64-bit numbers."""
    return sa.Column(name, big_integer(), nullable=nullable)


def text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    """Return a column of texts."""
    return sa.Column(name, sa.Text, nullable=nullable)


def one_of(column: str, values: tuple[str, ...]) -> sa.CheckConstraint:
    """Return the constraint that a column contains only these texts."""
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


def allow_values(table: str, column: str, before: tuple[str, ...], after: tuple[str, ...]) -> None:
    """Change the texts that a column may contain, for a constraint of ``one_of``."""
    old, new = (str(one_of(column, values).sqltext) for values in (before, after))
    if is_postgresql():
        op.drop_constraint(f"ck_{column}", table)
        op.create_check_constraint(f"ck_{column}", table, new)
        return
    # SQLite cannot change a constraint, and a referenced table cannot be rebuilt within a transaction. The schema text
    # is changed instead, as described in https://sqlite.org/lang_altertable.html (section 7).
    bind = op.get_bind()
    version = bind.execute(sa.text("PRAGMA schema_version")).scalar_one()
    changed = sa.text("UPDATE sqlite_master SET sql = replace(sql, :old, :new) WHERE type = 'table' AND name = :name")
    op.execute("PRAGMA writable_schema = ON")
    bind.execute(changed, {"old": old, "new": new, "name": table})
    op.execute(f"PRAGMA schema_version = {version + 1}")
    op.execute("PRAGMA writable_schema = OFF")


def create_table(name: str, *parts: Any) -> None:
    """Create a table with strict types."""
    op.create_table(name, *parts, sqlite_strict=True)


def create_index(name: str, table: str, columns: list[str], where: str | None = None, *, unique: bool = False) -> None:
    """Create an index, of the rows that match a condition if there is one."""
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def forget_audit(actions: tuple[str, ...]) -> None:
    """Delete the audit records with these actions, for a downgrade. This breaks the hash chain."""
    remove = f"DELETE FROM access_audit WHERE {one_of('action', actions).sqltext}"  # noqa: S608 - constants
    if is_postgresql():
        off, on = (f"ALTER TABLE access_audit {word} TRIGGER USER" for word in ("DISABLE", "ENABLE"))
    else:
        off, on = "DROP TRIGGER access_audit_no_delete", NO_DELETE
    for step in (off, remove, on):
        op.execute(step)


REFUSE = "BEGIN SELECT RAISE(ABORT, 'access_audit is append-only'); END"
NO_DELETE = f"CREATE TRIGGER access_audit_no_delete BEFORE DELETE ON access_audit {REFUSE}"
"""Trigger of SQLite that protects audit records."""
