"""Shadow runs: candidate manifests, and the accesses they would newly deny or allow."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None
additive = True  # New tables only; the audit log records them as notes, which nodes of the previous version know.

_RUNNING = "ended_at IS NULL"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "runtime_shadow_runs",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("kind", "name", "candidate", "started_by", "ended_by")),
        _number("started_at"),
        _number("ended_at", nullable=True),
        *map(_number, ("other_denied", "other_allowed")),
        _one_of("kind", ("module", "engine", "extractor")),
        sqlite_strict=True,
    )
    op.create_index(
        "uq_runtime_shadow_runs_running",
        "runtime_shadow_runs",
        ["kind", "name"],
        unique=True,
        sqlite_where=sa.text(_RUNNING),
        postgresql_where=sa.text(_RUNNING),
    )
    op.create_table(
        "runtime_shadow_findings",
        sa.Column("run_id", sa.Text, sa.ForeignKey("runtime_shadow_runs.id"), primary_key=True),
        sa.Column("digest", sa.Text, primary_key=True),
        *map(_text, ("effect", "resource_type", "operation", "target", "user_id", "chain")),
        *map(_number, ("count", "first_seen", "last_seen")),
        _one_of("effect", ("denied", "allowed")),
        sqlite_strict=True,
    )


def downgrade() -> None:
    """Remove the tables."""
    op.drop_table("runtime_shadow_findings")
    op.drop_table("runtime_shadow_runs")


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=nullable)


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=False)


def _one_of(column: str, values: tuple[str, ...]) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")
