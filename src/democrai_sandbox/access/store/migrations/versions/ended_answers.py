"""Requests with the end of their decision, and shadow runs as separate audit actions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import allow_values, create_index, forget_audit, number
from democrai_sandbox.access.store.migrations.versions.first_schema import ACTIONS

revision = "0007"
down_revision = "0006"
additive = False  # Requests and the audit log get values that nodes of the previous version do not know.

_STATES_BEFORE = ("pending", "approved_for_session", "approved", "denied", "aged_out")
_STATES = (*_STATES_BEFORE, "revoked", "expired", "replaced")
_SIGNED = ("signed_in", "sign_in_failed", "signed_out", "password_changed")
_ACCOUNTS = tuple(f"account_{what}" for what in (*_SIGNED, "added", "changed", "token_made", "token_revoked"))
_ACTIONS_BEFORE = (*ACTIONS, *_ACCOUNTS, "noted")
_SHADOWS = ("shadow_started", "shadow_ended")
_ACTIONS = (*_ACTIONS_BEFORE, *_SHADOWS)
_INDEX = "ix_access_requests_decision"


def upgrade() -> None:
    """Add the columns, fill them from the existing decisions, and allow the new values."""
    op.add_column("access_requests", sa.Column("decision_id", sa.Text))
    op.add_column("access_requests", number("ended_at", nullable=True))
    op.add_column("access_requests", sa.Column("ended_by", sa.Text, nullable=False, server_default=""))
    create_index(_INDEX, "access_requests", ["decision_id"], "decision_id IS NOT NULL")
    allow_values("access_requests", "state", _STATES_BEFORE, _STATES)
    allow_values("access_audit", "action", _ACTIONS_BEFORE, _ACTIONS)
    _find_decisions()
    _mark_ended()


def downgrade() -> None:
    """Restore the previous states of requests; remove audit records of shadow runs, which breaks the hash chain."""
    op.execute(
        "UPDATE access_requests SET state = (SELECT CASE WHEN effect = 'denial' THEN 'denied' "
        "WHEN scope = 'session' THEN 'approved_for_session' ELSE 'approved' END FROM access_decisions "
        "WHERE access_decisions.id = access_requests.decision_id) WHERE state IN ('revoked', 'expired', 'replaced')"
    )
    forget_audit(_SHADOWS)
    allow_values("access_audit", "action", _ACTIONS, _ACTIONS_BEFORE)
    allow_values("access_requests", "state", _STATES, _STATES_BEFORE)
    op.drop_index(_INDEX, "access_requests")
    for name in ("decision_id", "ended_at", "ended_by"):
        op.drop_column("access_requests", name)


def _find_decisions() -> None:
    """Store the decision of each request: its own, or the one of the same time about the same kind of access."""
    op.execute(
        "UPDATE access_requests SET decision_id = (SELECT min(d.id) FROM access_decisions d "
        "WHERE d.request_id = access_requests.id) WHERE decided_at IS NOT NULL"
    )
    op.execute(
        "UPDATE access_requests SET decision_id = (SELECT min(d.id) FROM access_decisions d "
        "WHERE d.created_at = access_requests.decided_at AND d.created_by = access_requests.decided_by "
        "AND d.subject_kind = access_requests.subject_kind AND d.subject_name = access_requests.subject_name "
        "AND d.resource_type = access_requests.resource_type AND d.operation = access_requests.operation) "
        "WHERE decided_at IS NOT NULL AND decision_id IS NULL"
    )


def _mark_ended() -> None:
    """Set the state of requests whose decision has ended: replaced, expired or revoked."""
    ended = "FROM access_decisions d WHERE d.id = access_requests.decision_id"
    replaced = "EXISTS (SELECT 1 FROM access_decisions n WHERE n.digest = d.digest AND n.created_at = d.ended_at)"
    op.execute(
        f"UPDATE access_requests SET ended_at = (SELECT d.ended_at {ended}), "  # noqa: S608 - constants
        f"ended_by = (SELECT d.ended_by {ended}), state = (SELECT CASE WHEN d.ended_by = 'system' THEN 'expired' "
        f"WHEN {replaced} THEN 'replaced' ELSE 'revoked' END {ended}) "
        f"WHERE decision_id IS NOT NULL AND EXISTS (SELECT 1 {ended} AND d.ended_at IS NOT NULL)"
    )
