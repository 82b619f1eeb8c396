"""Meta, requests, decisions, audit log, resumptions and ended sessions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import (
    NO_DELETE,
    REFUSE,
    big_integer,
    create_index,
    create_table,
    is_postgresql,
    number,
    one_of,
    text,
)

revision = "0001"
down_revision = None

_KINDS = ("module", "task", "engine", "extractor", "mcp", "tool", "agent", "pipeline", "skill", "core")
_RESOURCES = ("network", "filesystem", "system_dependency")
_OPERATIONS = ("connect", "receive", "send", "read", "create", "modify", "delete", "execute")
_REQUEST_STATES = ("pending", "approved_for_session", "approved", "denied", "aged_out")
_RESUME_STATES = ("waiting", "running", "succeeded", "failed")
_DECIDED = ("approved_for_session", "approved", "denied", "revoked", "expired", "session_ended", "aged_out")
_RESUMED = ("resume_attached", "resume_succeeded", "resume_failed")
ACTIONS = ("requested", *_DECIDED, *_RESUMED, "check_failed")


def upgrade() -> None:
    """Create all tables."""
    _make_meta()
    _make_requests()
    _make_decisions()
    _make_audit()
    _make_resumes()
    create_table("access_ended_sessions", sa.Column("session_key", sa.Text, primary_key=True), number("ended_at"))
    _protect_audit()


def downgrade() -> None:
    """Remove all tables."""
    for name in ("ended_sessions", "resumes", "audit", "decisions", "requests", "meta"):
        op.drop_table(f"access_{name}")
    if is_postgresql():
        op.execute("DROP FUNCTION access_audit_stays()")


def _make_meta() -> None:
    create_table(
        "access_meta",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        number("generation"),
        number("audit_sequence"),
        text("audit_hash"),
        sa.CheckConstraint("id = 1", name="ck_single"),
    )
    op.execute("INSERT INTO access_meta (id, generation, audit_sequence, audit_hash) VALUES (1, 0, 0, '')")


def _make_requests() -> None:
    create_table(
        "access_requests",
        sa.Column("id", sa.Text, primary_key=True),
        text("digest"),
        *_about(),
        *map(text, ("target_folded", "raw_target", "chain", "user_id", "organization_id", "session_key", "task_id")),
        text("resume_action"),
        sa.Column("resume_context", sa.LargeBinary),
        text("state"),
        *map(number, ("first_seen", "last_seen", "count")),
        sa.Column("session_ended", sa.Integer, nullable=False),
        number("decided_at", nullable=True),
        *map(text, ("decided_by", "reason")),
        one_of("state", _REQUEST_STATES),
    )
    pending = "state = 'pending'"
    create_index(
        "uq_access_requests_pending", "access_requests", ["digest", "user_id", "session_key"], pending, unique=True
    )
    create_index("ix_access_requests_seen", "access_requests", ["state", "last_seen", "id"])
    create_index("ix_access_requests_asker", "access_requests", ["user_id", "subject_kind", "subject_name"], pending)
    create_index("ix_access_requests_session", "access_requests", ["session_key"], f"{pending} AND session_key <> ''")


def _make_decisions() -> None:
    create_table(
        "access_decisions",
        sa.Column("id", sa.Text, primary_key=True),
        text("digest"),
        *_about(),
        *map(text, ("target_folded", "effect", "scope", "session_key")),
        number("created_at"),
        *map(text, ("created_by", "reason")),
        sa.Column("request_id", sa.Text, sa.ForeignKey("access_requests.id")),
        number("generation"),
        number("expires_at", nullable=True),
        number("ended_at", nullable=True),
        text("ended_by"),
        number("last_used", nullable=True),
        one_of("effect", ("approval", "denial")),
        one_of("scope", ("session", "permanent")),
        sa.CheckConstraint("(scope = 'session') = (session_key <> '')", name="ck_session"),
        sa.CheckConstraint("effect = 'approval' OR scope = 'permanent'", name="ck_denial"),
    )
    live = "ended_at IS NULL"
    kind = ["digest", "effect", "scope", "session_key"]
    create_index("uq_access_decisions_live", "access_decisions", kind, live, unique=True)
    create_index("ix_access_decisions_generation", "access_decisions", ["generation"])
    create_index("ix_access_decisions_live", "access_decisions", ["generation"], live)
    create_index("ix_access_decisions_created", "access_decisions", ["created_at", "id"])
    create_index("ix_access_decisions_session", "access_decisions", ["session_key"], f"{live} AND session_key <> ''")
    denials = f"{live} AND effect = 'denial'"
    create_index("ix_access_decisions_denials", "access_decisions", ["subject_kind", "subject_name"], denials)
    create_index("ix_access_decisions_expiry", "access_decisions", ["expires_at"], f"{live} AND expires_at IS NOT NULL")


def _make_audit() -> None:
    create_table(
        "access_audit",
        sa.Column("sequence", big_integer(), primary_key=True, autoincrement=False),
        number("at"),
        *map(text, ("action", "actor")),
        *_about(nullable=True),
        *map(text, ("request_id", "before", "after", "previous_hash", "hash")),
        one_of("action", ACTIONS),
    )
    create_index("ix_access_audit_request", "access_audit", ["request_id", "sequence"])


def _make_resumes() -> None:
    create_table(
        "access_resumes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, sa.ForeignKey("access_requests.id"), nullable=False, unique=True),
        sa.Column("decision_id", sa.Text, sa.ForeignKey("access_decisions.id"), nullable=False),
        text("state"),
        sa.Column("attempts", sa.Integer, nullable=False),
        *map(number, ("created_at", "next_attempt")),
        text("leased_by"),
        number("lease_until", nullable=True),
        text("last_error"),
        number("finished_at", nullable=True),
        one_of("state", _RESUME_STATES),
    )
    create_index("ix_access_resumes_due", "access_resumes", ["next_attempt"], "finished_at IS NULL")
    create_index("ix_access_resumes_created", "access_resumes", ["created_at", "id"])


def _protect_audit() -> None:
    """Make the table append-only.

    SQLite's ``INSERT OR REPLACE`` bypasses the delete trigger, so it has its own trigger.
    """
    if is_postgresql():
        op.execute(
            "CREATE FUNCTION access_audit_stays() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'access_audit is append-only'; END $$"
        )
        stays = "EXECUTE FUNCTION access_audit_stays()"
        op.execute(f"CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON access_audit FOR EACH ROW {stays}")
        op.execute(f"CREATE TRIGGER keep_all BEFORE TRUNCATE ON access_audit FOR EACH STATEMENT {stays}")
        return
    op.execute(f"CREATE TRIGGER access_audit_no_update BEFORE UPDATE ON access_audit {REFUSE}")
    op.execute(NO_DELETE)
    taken = "EXISTS (SELECT 1 FROM access_audit WHERE sequence = NEW.sequence)"
    op.execute(f"CREATE TRIGGER access_audit_no_replace BEFORE INSERT ON access_audit WHEN {taken} {REFUSE}")


def _about(*, nullable: bool = False) -> list[Any]:
    names = ("subject_kind", "subject_name", "resource_type", "operation", "target")
    columns: list[Any] = [text(name, nullable=nullable) for name in names]
    checks = (("subject_kind", _KINDS), ("resource_type", _RESOURCES), ("operation", _OPERATIONS))
    return columns + [one_of(name, values) for name, values in checks]
