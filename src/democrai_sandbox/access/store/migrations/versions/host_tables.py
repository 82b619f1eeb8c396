"""Tables of the host: users, sessions, tokens and failed sign-ins, with their audit actions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import (
    big_integer,
    create_table,
    is_postgresql,
    number,
    one_of,
    protect_audit_in_sqlite,
    text,
)

revision = "0003"
down_revision = "0002"
additive = False  # The audit log gets actions that nodes of the previous version do not know.

_KINDS = ("module", "task", "engine", "extractor", "mcp", "tool", "agent", "pipeline", "skill", "core")
_RESOURCES = ("network", "filesystem", "system_dependency")
_OPERATIONS = ("connect", "receive", "send", "read", "create", "modify", "delete", "execute")
_DECIDED = ("approved_for_session", "approved", "denied", "revoked", "expired", "session_ended", "aged_out")
_RESUMED = ("resume_attached", "resume_succeeded", "resume_failed")
_BEFORE = ("requested", *_DECIDED, *_RESUMED, "check_failed")
_SIGNED = ("signed_in", "sign_in_failed", "signed_out", "password_changed")
_ACCOUNTS = tuple(f"account_{what}" for what in (*_SIGNED, "added", "changed", "token_made", "token_revoked"))
_AFTER = (*_BEFORE, *_ACCOUNTS, "noted")
_ABOUT = ("subject_kind", "subject_name", "resource_type", "operation", "target")
_REST = ("request_id", '"before"', '"after"', "previous_hash", "hash")
_AUDIT = ", ".join(("sequence", "at", "action", "actor", *_ABOUT, *_REST))


def upgrade() -> None:
    """Create the tables and allow audit records about accounts."""
    _make_users()
    _make_sessions()
    _make_tokens()
    _make_throttle()
    _change_audit_actions(_AFTER)


def downgrade() -> None:
    """Remove the tables, and audit records that the previous version does not know, which breaks the hash chain."""
    for name in ("throttle", "tokens", "sessions", "people"):
        op.drop_table(f"host_{name}")
    _change_audit_actions(_BEFORE)


def _make_users() -> None:
    create_table(
        "host_people",
        sa.Column("id", sa.Text, primary_key=True),
        *map(text, ("password", "role", "access_level", "organization_id")),
        *map(number, ("created_at", "password_at")),
        number("disabled_at", nullable=True),
    )


def _make_sessions() -> None:
    create_table(
        "host_sessions",
        sa.Column("id", sa.Text, primary_key=True),
        _hash("token_hash"),
        _person(),
        *map(text, ("address", "user_agent")),
        *map(number, ("created_at", "last_seen", "confirmed_at")),
    )
    op.create_index("ix_host_sessions_person", "host_sessions", ["person_id", "created_at"])


def _make_tokens() -> None:
    create_table(
        "host_tokens",
        sa.Column("id", sa.Text, primary_key=True),
        _hash("secret_hash"),
        _person(),
        *map(text, ("label", "scopes")),
        number("created_at"),
        *(number(name, nullable=True) for name in ("expires_at", "last_used", "ended_at")),
    )
    op.create_index("ix_host_tokens_person", "host_tokens", ["person_id", "created_at"])


def _make_throttle() -> None:
    create_table(
        "host_throttle",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("failures", sa.Integer, nullable=False),
        *map(number, ("last_at", "forget_at")),
    )
    op.create_index("ix_host_throttle_forget", "host_throttle", ["forget_at"])


def _change_audit_actions(actions: tuple[str, ...]) -> None:
    """Change the allowed values of ``action`` and remove rows with others, which exist only in a downgrade."""
    listed = ", ".join(f"'{action}'" for action in actions)
    if not is_postgresql():
        _rebuild_audit(actions, listed)
        return
    op.execute("ALTER TABLE access_audit DISABLE TRIGGER USER")
    op.execute(f"DELETE FROM access_audit WHERE action NOT IN ({listed})")  # noqa: S608 - constants
    op.execute("ALTER TABLE access_audit ENABLE TRIGGER USER")
    op.drop_constraint("ck_action", "access_audit")
    op.create_check_constraint("ck_action", "access_audit", f"action IN ({listed})")


def _rebuild_audit(actions: tuple[str, ...], listed: str) -> None:
    """Move the rows to a new table with the same index and triggers, because SQLite cannot change a constraint."""
    create_table(
        "access_audit_new",
        sa.Column("sequence", big_integer(), primary_key=True, autoincrement=False),
        number("at"),
        *map(text, ("action", "actor")),
        *(
            sa.Column(name, sa.Text)
            for name in ("subject_kind", "subject_name", "resource_type", "operation", "target")
        ),
        *(one_of(*about) for about in (("subject_kind", _KINDS), ("resource_type", _RESOURCES))),
        one_of("operation", _OPERATIONS),
        *map(text, ("request_id", "before", "after", "previous_hash", "hash")),
        one_of("action", actions),
    )
    op.execute(
        f"INSERT INTO access_audit_new ({_AUDIT}) SELECT {_AUDIT} FROM access_audit "  # noqa: S608 - constants
        f"WHERE action IN ({listed}) ORDER BY sequence"
    )
    op.drop_table("access_audit")
    op.rename_table("access_audit_new", "access_audit")
    op.create_index("ix_access_audit_request", "access_audit", ["request_id", "sequence"])
    protect_audit_in_sqlite()


def _person() -> sa.Column[Any]:
    return sa.Column("person_id", sa.Text, sa.ForeignKey("host_people.id"), nullable=False)


def _hash(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=False, unique=True)
