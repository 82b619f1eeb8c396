"""Models that administrators add while the host runs, with their keys encrypted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None
additive = True  # A new table only, which nodes of the version before do not use.


def upgrade() -> None:
    """Make the table."""
    moment = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "runtime_models",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("settings", sa.Text, nullable=False),
        sa.Column("api_key", sa.LargeBinary),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("updated_at", moment, nullable=False),
        sqlite_strict=True,
    )


def downgrade() -> None:
    """Remove it with all models."""
    op.drop_table("runtime_models")
