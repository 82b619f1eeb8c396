"""Tables of the host: users, sessions, tokens and failed sign-ins, with their audit actions."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import allow_values, create_table, forget_audit, number, text
from democrai_sandbox.access.store.migrations.versions.first_schema import ACTIONS

revision = "0003"
down_revision = "0002"
additive = False  # The audit log gets actions that nodes of the previous version do not know.

_SIGNED = ("signed_in", "sign_in_failed", "signed_out", "password_changed")
_ACCOUNTS = tuple(f"account_{what}" for what in (*_SIGNED, "added", "changed", "token_made", "token_revoked"))
_NEW = (*_ACCOUNTS, "noted")


def upgrade() -> None:
    """Create the tables and allow audit records about accounts."""
    create_table(
        "host_people",
        sa.Column("id", sa.Text, primary_key=True),
        *map(text, ("password", "role", "access_level", "organization_id")),
        *map(number, ("created_at", "password_at")),
        number("disabled_at", nullable=True),
    )
    create_table(
        "host_sessions",
        sa.Column("id", sa.Text, primary_key=True),
        _hash("token_hash"),
        _person(),
        *map(text, ("address", "user_agent")),
        *map(number, ("created_at", "last_seen", "confirmed_at")),
    )
    op.create_index("ix_host_sessions_person", "host_sessions", ["person_id", "created_at"])
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
    create_table(
        "host_throttle",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("failures", sa.Integer, nullable=False),
        *map(number, ("last_at", "forget_at")),
    )
    op.create_index("ix_host_throttle_forget", "host_throttle", ["forget_at"])
    allow_values("access_audit", "action", ACTIONS, (*ACTIONS, *_NEW))


def downgrade() -> None:
    """Remove the tables, and audit records that the previous version does not know, which breaks the hash chain."""
    for name in ("throttle", "tokens", "sessions", "people"):
        op.drop_table(f"host_{name}")
    forget_audit(_NEW)
    allow_values("access_audit", "action", (*ACTIONS, *_NEW), ACTIONS)


def _person() -> sa.Column[Any]:
    return sa.Column("person_id", sa.Text, sa.ForeignKey("host_people.id"), nullable=False)


def _hash(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.Text, nullable=False, unique=True)
