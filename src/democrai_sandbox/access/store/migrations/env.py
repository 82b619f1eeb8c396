"""What Alembic runs: the migrations, on the connection and in the transaction that the caller opened."""

from __future__ import annotations

from alembic import context

from democrai_sandbox.access.store.schema import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    # SQLite can: with its default Alembic would leave half a migration behind when one fails.
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
