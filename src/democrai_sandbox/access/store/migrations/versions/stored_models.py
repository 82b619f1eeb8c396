"""Models that administrators add at run time, with encrypted keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import create_table, number, text

revision = "0009"
down_revision = "0008"
additive = True  # A new table only, which nodes of the previous version do not use.


def upgrade() -> None:
    """Create the table."""
    create_table(
        "runtime_models",
        sa.Column("name", sa.Text, primary_key=True),
        text("settings"),
        sa.Column("api_key", sa.LargeBinary),
        *map(number, ("created_at", "updated_at")),
    )


def downgrade() -> None:
    """Remove the table."""
    op.drop_table("runtime_models")
