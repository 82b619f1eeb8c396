"""Tables of runtimes: tasks, schedules, MCP servers, and settings of engines and extractors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import create_index, create_table, number, one_of, text

revision = "0002"
down_revision = "0001"
additive = True  # New tables only.

_STATES = ("queued", "running", "done", "failed", "cancelled", "lost")
_TRANSPORTS = ("streamable_http", "sse")
_KINDS = ("engine", "extractor")
_UNFINISHED = "finished_at IS NULL"


def upgrade() -> None:
    """Create the tables. Their prefix distinguishes them in a shared database."""
    create_table(
        "runtime_tasks",
        sa.Column("id", sa.Text, primary_key=True),
        *map(text, ("module", "name", "user_id", "organization_id", "session_key")),
        sa.Column("scheduled", sa.Integer, nullable=False),
        *map(text, ("state", "params", "progress", "result", "failure", "node")),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("cancel_requested", sa.Integer, nullable=False),
        number("created_at"),
        *(number(name, nullable=True) for name in ("started_at", "heartbeat_at", "finished_at")),
        one_of("state", _STATES),
        sa.CheckConstraint("(state IN ('queued', 'running')) = (finished_at IS NULL)", name="ck_finished"),
    )
    create_index("ix_runtime_tasks_module", "runtime_tasks", ["module", "id"])
    create_index("ix_runtime_tasks_alive", "runtime_tasks", ["node", "heartbeat_at"], _UNFINISHED)
    create_index("ix_runtime_tasks_finished", "runtime_tasks", ["finished_at"])
    create_table(
        "runtime_schedules",
        sa.Column("module", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        number("every"),
        number("next_at"),
    )
    create_table(
        "runtime_mcp_servers",
        sa.Column("name", sa.Text, primary_key=True),
        *map(text, ("transport", "endpoint_url")),
        sa.Column("enabled", sa.Integer, nullable=False),
        sa.Column("timeout_ms", sa.Integer, nullable=False),
        *map(number, ("created_at", "updated_at")),
        one_of("transport", _TRANSPORTS),
    )
    create_table(
        "runtime_engine_settings",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, primary_key=True),
        text("settings"),
        number("updated_at"),
        one_of("kind", _KINDS),
    )


def downgrade() -> None:
    """Remove the tables."""
    for name in ("engine_settings", "mcp_servers", "schedules", "tasks"):
        op.drop_table(f"runtime_{name}")
