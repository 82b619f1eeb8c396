"""Meta, requests, decisions, audit log, resumptions and ended sessions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_KINDS = ("module", "task", "engine", "extractor", "mcp", "tool", "agent", "pipeline", "skill", "core")
_RESOURCES = ("network", "filesystem", "system_dependency")
_OPERATIONS = ("connect", "receive", "send", "read", "create", "modify", "delete", "execute")
_REQUEST_STATES = ("pending", "approved_for_session", "approved", "denied", "aged_out")
_RESUME_STATES = ("waiting", "running", "succeeded", "failed")
_DECIDED = ("approved_for_session", "approved", "denied", "revoked", "expired", "session_ended", "aged_out")
_RESUMED = ("resume_attached", "resume_succeeded", "resume_failed")
_ACTIONS = ("requested", *_DECIDED, *_RESUMED, "check_failed")


def upgrade() -> None:
    """Create all tables."""
    _make_meta()
    _make_requests()
    _make_decisions()
    _make_audit()
    _make_resumes()
    _make_ended_sessions()
    _protect_audit()


def downgrade() -> None:
    """Remove all tables."""
    for name in ("ended_sessions", "resumes", "audit", "decisions", "requests", "meta"):
        op.drop_table(f"access_{name}")
    if _is_postgresql():
        op.execute("DROP FUNCTION access_audit_stays()")


def _make_meta() -> None:
    _table(
        "access_meta",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        _number("generation"),
        _number("audit_sequence"),
        _text("audit_hash"),
        sa.CheckConstraint("id = 1", name="ck_single"),
    )
    op.execute("INSERT INTO access_meta (id, generation, audit_sequence, audit_hash) VALUES (1, 0, 0, '')")


def _make_requests() -> None:
    _table(
        "access_requests",
        sa.Column("id", sa.Text, primary_key=True),
        _text("digest"),
        *_about(),
        *map(_text, ("target_folded", "raw_target", "chain", "user_id", "organization_id", "session_key", "task_id")),
        _text("resume_action"),
        sa.Column("resume_context", sa.LargeBinary),
        _text("state"),
        *map(_number, ("first_seen", "last_seen", "count")),
        sa.Column("session_ended", sa.Integer, nullable=False),
        _number("decided_at", nullable=True),
        *map(_text, ("decided_by", "reason")),
        _one_of("state", _REQUEST_STATES),
    )
    pending = "state = 'pending'"
    _index("uq_access_requests_pending", "access_requests", ["digest", "user_id", "session_key"], pending, unique=True)
    _index("ix_access_requests_seen", "access_requests", ["state", "last_seen", "id"])
    _index("ix_access_requests_asker", "access_requests", ["user_id", "subject_kind", "subject_name"], pending)
    _index("ix_access_requests_session", "access_requests", ["session_key"], f"{pending} AND session_key <> ''")


def _make_decisions() -> None:
    _table(
        "access_decisions",
        sa.Column("id", sa.Text, primary_key=True),
        _text("digest"),
        *_about(),
        *map(_text, ("target_folded", "effect", "scope", "session_key")),
        _number("created_at"),
        *map(_text, ("created_by", "reason")),
        sa.Column("request_id", sa.Text, sa.ForeignKey("access_requests.id")),
        _number("generation"),
        _number("expires_at", nullable=True),
        _number("ended_at", nullable=True),
        _text("ended_by"),
        _number("last_used", nullable=True),
        _one_of("effect", ("approval", "denial")),
        _one_of("scope", ("session", "permanent")),
        sa.CheckConstraint("(scope = 'session') = (session_key <> '')", name="ck_session"),
        sa.CheckConstraint("effect = 'approval' OR scope = 'permanent'", name="ck_denial"),
    )
    live = "ended_at IS NULL"
    kind = ["digest", "effect", "scope", "session_key"]
    _index("uq_access_decisions_live", "access_decisions", kind, live, unique=True)
    _index("ix_access_decisions_generation", "access_decisions", ["generation"])
    _index("ix_access_decisions_live", "access_decisions", ["generation"], live)
    _index("ix_access_decisions_created", "access_decisions", ["created_at", "id"])
    _index("ix_access_decisions_session", "access_decisions", ["session_key"], f"{live} AND session_key <> ''")
    denials = f"{live} AND effect = 'denial'"
    _index("ix_access_decisions_denials", "access_decisions", ["subject_kind", "subject_name"], denials)
    _index("ix_access_decisions_expiry", "access_decisions", ["expires_at"], f"{live} AND expires_at IS NOT NULL")


def _make_audit() -> None:
    _table(
        "access_audit",
        sa.Column("sequence", _big(), primary_key=True, autoincrement=False),
        _number("at"),
        *map(_text, ("action", "actor")),
        *_about(nullable=True),
        *map(_text, ("request_id", "before", "after", "previous_hash", "hash")),
        _one_of("action", _ACTIONS),
    )
    _index("ix_access_audit_request", "access_audit", ["request_id", "sequence"])


def _make_resumes() -> None:
    _table(
        "access_resumes",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("request_id", sa.Text, sa.ForeignKey("access_requests.id"), nullable=False, unique=True),
        sa.Column("decision_id", sa.Text, sa.ForeignKey("access_decisions.id"), nullable=False),
        _text("state"),
        sa.Column("attempts", sa.Integer, nullable=False),
        *map(_number, ("created_at", "next_attempt")),
        _text("leased_by"),
        _number("lease_until", nullable=True),
        _text("last_error"),
        _number("finished_at", nullable=True),
        _one_of("state", _RESUME_STATES),
    )
    _index("ix_access_resumes_due", "access_resumes", ["next_attempt"], "finished_at IS NULL")
    _index("ix_access_resumes_created", "access_resumes", ["created_at", "id"])


def _make_ended_sessions() -> None:
    _table("access_ended_sessions", sa.Column("session_key", sa.Text, primary_key=True), _number("ended_at"))


def _protect_audit() -> None:
    """Make the table append-only.

    SQLite's ``INSERT OR REPLACE`` bypasses the delete trigger, so it has its own trigger.
    """
    if _is_postgresql():
        op.execute(
            "CREATE FUNCTION access_audit_stays() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'access_audit is append-only'; END $$"
        )
        stays = "EXECUTE FUNCTION access_audit_stays()"
        op.execute(f"CREATE TRIGGER keep BEFORE UPDATE OR DELETE ON access_audit FOR EACH ROW {stays}")
        op.execute(f"CREATE TRIGGER keep_all BEFORE TRUNCATE ON access_audit FOR EACH STATEMENT {stays}")
        return
    refuse = "BEGIN SELECT RAISE(ABORT, 'access_audit is append-only'); END"
    op.execute(f"CREATE TRIGGER access_audit_no_update BEFORE UPDATE ON access_audit {refuse}")
    op.execute(f"CREATE TRIGGER access_audit_no_delete BEFORE DELETE ON access_audit {refuse}")
    taken = "EXISTS (SELECT 1 FROM access_audit WHERE sequence = NEW.sequence)"
    op.execute(f"CREATE TRIGGER access_audit_no_replace BEFORE INSERT ON access_audit WHEN {taken} {refuse}")


def _is_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def _big() -> Any:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, _big(), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _about(*, nullable: bool = False) -> list[Any]:
    names = ("subject_kind", "subject_name", "resource_type", "operation", "target")
    columns: list[Any] = [_text(name, nullable=nullable) for name in names]
    checks = (("subject_kind", _KINDS), ("resource_type", _RESOURCES), ("operation", _OPERATIONS))
    return columns + [_one_of(name, values) for name, values in checks]


def _one_of(column: str, values: tuple[str, ...]) -> sa.CheckConstraint:
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


def _table(name: str, *parts: Any) -> None:
    op.create_table(name, *parts, sqlite_strict=True)


def _index(name: str, table: str, columns: list[str], where: str | None = None, *, unique: bool = False) -> None:
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)
