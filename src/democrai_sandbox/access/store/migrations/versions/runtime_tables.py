"""Tables of runtimes: tasks, schedules, MCP servers, and settings of engines and extractors."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None
additive = True  # New tables only.

_STATES = ("queued", "running", "done", "failed", "cancelled", "lost")
_TRANSPORTS = ("streamable_http", "sse")
_KINDS = ("engine", "extractor")
_UNFINISHED = "finished_at IS NULL"


def upgrade() -> None:
    """Create the tables. Their prefix distinguishes them in a shared database."""
    _make_tasks()
    _make_schedules()
    _make_mcp_servers()
    _make_engine_settings()


def downgrade() -> None:
    """Remove the tables."""
    for name in ("engine_settings", "mcp_servers", "schedules", "tasks"):
        op.drop_table(f"runtime_{name}")


def _make_tasks() -> None:
    _table(
        "runtime_tasks",
        sa.Column("id", sa.Text, primary_key=True),
        *map(_text, ("module", "name", "user_id", "organization_id", "session_key")),
        sa.Column("scheduled", sa.Integer, nullable=False),
        *map(_text, ("state", "params", "progress", "result", "failure", "node")),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("cancel_requested", sa.Integer, nullable=False),
        _number("created_at"),
        *(_number(name, nullable=True) for name in ("started_at", "heartbeat_at", "finished_at")),
        _one_of("state", _STATES),
        sa.CheckConstraint("(state IN ('queued', 'running')) = (finished_at IS NULL)", name="ck_finished"),
    )
    _index("ix_runtime_tasks_module", "runtime_tasks", ["module", "id"])
    _index("ix_runtime_tasks_alive", "runtime_tasks", ["node", "heartbeat_at"], _UNFINISHED)
    _index("ix_runtime_tasks_finished", "runtime_tasks", ["finished_at"])


def _make_schedules() -> None:
    _table(
        "runtime_schedules",
        sa.Column("module", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        _number("every"),
        _number("next_at"),
    )


def _make_mcp_servers() -> None:
    _table(
        "runtime_mcp_servers",
        sa.Column("name", sa.Text, primary_key=True),
        *map(_text, ("transport", "endpoint_url")),
        sa.Column("enabled", sa.Integer, nullable=False),
        sa.Column("timeout_ms", sa.Integer, nullable=False),
        *map(_number, ("created_at", "updated_at")),
        _one_of("transport", _TRANSPORTS),
    )


def _make_engine_settings() -> None:
    _table(
        "runtime_engine_settings",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        _text("settings"),
        _number("updated_at"),
        _one_of("kind", _KINDS),
    )


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=nullable)


def _text(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=False)


def _one_of(column: str, values: tuple[str, ...]) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


def _table(name: str, *parts: Any) -> None:
    op.create_table(name, *parts, sqlite_strict=True)


def _index(name: str, table: str, columns: list[str], where: str | None = None) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns, sqlite_where=condition, postgresql_where=condition)
