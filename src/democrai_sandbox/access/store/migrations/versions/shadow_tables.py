"""Shadow runs: candidate manifests, and the accesses they would newly deny or allow."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import create_index, create_table, number, one_of, text

revision = "0005"
down_revision = "0004"
additive = True  # New tables only; the audit log records them as notes, which nodes of the previous version know.


def upgrade() -> None:
    """Create the tables."""
    create_table(
        "runtime_shadow_runs",
        sa.Column("id", sa.Text, primary_key=True),
        *map(text, ("kind", "name", "candidate", "started_by", "ended_by")),
        number("started_at"),
        number("ended_at", nullable=True),
        *map(number, ("other_denied", "other_allowed")),
        one_of("kind", ("module", "engine", "extractor")),
    )
    running = "ended_at IS NULL"
    create_index("uq_runtime_shadow_runs_running", "runtime_shadow_runs", ["kind", "name"], running, unique=True)
    create_table(
        "runtime_shadow_findings",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runtime_shadow_runs.id"), primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        *map(text, ("effect", "resource_type", "operation", "target", "user_id", "chain")),
        *map(number, ("count", "first_seen", "last_seen")),
        one_of("effect", ("denied", "allowed")),
    )


def downgrade() -> None:
    """Remove the tables."""
    op.drop_table("runtime_shadow_findings")
    op.drop_table("runtime_shadow_runs")
