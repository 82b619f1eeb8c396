"""Tables of this version of the code. Migrations create them; a test compares the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import CheckConstraint, Column, ForeignKey, Index, Integer, LargeBinary, MetaData, Table, Text, text

from democrai_sandbox.access.store.tables import AnyText, Moment, big_integer
from democrai_sandbox.manifests import McpTransport

from .values import TaskState

if TYPE_CHECKING:
    from collections.abc import Iterable

metadata = MetaData()


def _one_of(column: str, values: Iterable[str]) -> CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


tasks = Table(
    "runtime_tasks",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("module", AnyText, nullable=False),
    Column("name", AnyText, nullable=False),
    Column("user_id", AnyText, nullable=False),
    Column("organization_id", AnyText, nullable=False),
    Column("session_key", AnyText, nullable=False),
    Column("scheduled", Integer, nullable=False),
    Column("state", Text, nullable=False),
    # JSON in plain ASCII; empty if unset.
    Column("params", Text, nullable=False),
    Column("progress", Text, nullable=False),
    Column("result", Text, nullable=False),
    Column("failure", Text, nullable=False),
    Column("node", AnyText, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("cancel_requested", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("started_at", Moment),
    Column("heartbeat_at", Moment),
    Column("finished_at", Moment),
    _one_of("state", TaskState),
    CheckConstraint("(state IN ('queued', 'running')) = (finished_at IS NULL)", name="ck_finished"),
    Index("ix_runtime_tasks_module", "module", "id"),
    Index(
        "ix_runtime_tasks_alive",
        "node",
        "heartbeat_at",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
    Index("ix_runtime_tasks_finished", "finished_at"),
    sqlite_strict=True,
)

schedules = Table(
    "runtime_schedules",
    metadata,
    Column("module", AnyText, primary_key=True),
    Column("name", AnyText, primary_key=True),
    Column("every", big_integer(), nullable=False),
    Column("next_at", Moment, nullable=False),
    sqlite_strict=True,
)

mcp_servers = Table(
    "runtime_mcp_servers",
    metadata,
    Column("name", AnyText, primary_key=True),
    Column("transport", Text, nullable=False),
    Column("endpoint_url", AnyText, nullable=False),
    Column("enabled", Integer, nullable=False),
    Column("timeout_ms", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    _one_of("transport", McpTransport),
    sqlite_strict=True,
)

engine_settings = Table(
    "runtime_engine_settings",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", AnyText, primary_key=True),
    Column("settings", Text, nullable=False),
    Column("updated_at", Moment, nullable=False),
    _one_of("kind", ("engine", "extractor")),
    sqlite_strict=True,
)

models = Table(
    "runtime_models",
    metadata,
    Column("name", AnyText, primary_key=True),
    # JSON in plain ASCII, without the key.
    Column("settings", Text, nullable=False),
    # Encrypted with the key ring, and bound to the name and the endpoint.
    Column("api_key", LargeBinary),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    sqlite_strict=True,
)

shadow_runs = Table(
    "runtime_shadow_runs",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("name", AnyText, nullable=False),
    # Text of a manifest, as it was given.
    Column("candidate", AnyText, nullable=False),
    Column("started_by", AnyText, nullable=False),
    Column("ended_by", AnyText, nullable=False),
    Column("started_at", Moment, nullable=False),
    Column("ended_at", Moment),
    # Counts beyond the stored findings.
    Column("other_denied", big_integer(), nullable=False),
    Column("other_allowed", big_integer(), nullable=False),
    _one_of("kind", ("module", "engine", "extractor")),
    Index(
        "uq_runtime_shadow_runs_running",
        "kind",
        "name",
        unique=True,
        sqlite_where=text("ended_at IS NULL"),
        postgresql_where=text("ended_at IS NULL"),
    ),
    sqlite_strict=True,
)

shadow_findings = Table(
    "runtime_shadow_findings",
    metadata,
    Column("run_id", AnyText, ForeignKey("runtime_shadow_runs.id"), primary_key=True),
    # Hash of the finding's subject matter: targets are too long for an index.
    Column("digest", Text, primary_key=True),
    Column("effect", Text, nullable=False),
    Column("resource_type", AnyText, nullable=False),
    Column("operation", AnyText, nullable=False),
    Column("target", AnyText, nullable=False),
    Column("user_id", AnyText, nullable=False),
    # JSON in plain ASCII: the subjects, outermost first.
    Column("chain", Text, nullable=False),
    Column("count", big_integer(), nullable=False),
    Column("first_seen", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    _one_of("effect", ("denied", "allowed")),
    sqlite_strict=True,
)

is_unfinished = tasks.c.finished_at.is_(None)
