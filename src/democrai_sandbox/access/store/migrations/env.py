"""Alembic environment: runs the migrations on the connection and in the transaction of the caller."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from democrai_sandbox.access.store.migrations import nodes_of
from democrai_sandbox.access.store.schema import NODES_TABLE, VERSION_TABLE


def _list_nodes() -> None:
    """Store which versions may use the database now, because older versions cannot know this."""
    connection, scripts = context.get_context().connection, context.script
    if connection is None:
        return
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS {NODES_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text(f"DELETE FROM {NODES_TABLE}"))  # noqa: S608 - a constant
    for version in context.get_context().get_current_heads():
        for node in nodes_of(scripts, version):
            connection.execute(text(f"INSERT INTO {NODES_TABLE} VALUES (:version)"), {"version": node})  # noqa: S608


context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    # SQLite supports this. With its default, Alembic would leave half of a failed migration behind.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
    _list_nodes()
