"""Idempotency keys: answered API requests and their results, so that a repeated one takes effect once."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import create_table, number, text

revision = "0008"
down_revision = "0007"
additive = True  # A new table only, which nodes of the previous version do not use.


def upgrade() -> None:
    """Create the table."""
    create_table(
        "host_idempotency",
        sa.Column("id", sa.Text, primary_key=True),
        *map(text, ("caller", "digest")),
        text("answer", nullable=True),
        number("begun_at"),
    )
    op.create_index("ix_host_idempotency_caller", "host_idempotency", ["caller", "begun_at"])
    op.create_index("ix_host_idempotency_begun", "host_idempotency", ["begun_at"])


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("host_idempotency")
