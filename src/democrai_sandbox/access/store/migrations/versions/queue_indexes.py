"""Indexes for the queue of pending requests, and for related data of a request."""

from __future__ import annotations

from alembic import op

from democrai_sandbox.access.store.migrations import create_index

revision = "0004"
down_revision = "0003"
additive = True  # New indexes only.

_PENDING = "state = 'pending'"
# The state is constant in an index over pending requests. It is included for SQLite, which has no statistics and
# prefers the index with more of the queried columns.
_INDEXES = (
    ("ix_access_requests_queue", "access_requests", ["operation", "id"], _PENDING),
    ("ix_access_requests_group", "access_requests", ["state", "digest", "id"], _PENDING),
    ("ix_access_requests_waiting", "access_requests", ["state", "first_seen"], _PENDING),
    ("ix_access_requests_decided", "access_requests", ["decided_at"], "decided_at IS NOT NULL"),
    ("ix_access_decisions_subject", "access_decisions", ["subject_kind", "subject_name", "created_at", "id"], None),
)


def upgrade() -> None:
    """Create the indexes."""
    for index in _INDEXES:
        create_index(*index)


def downgrade() -> None:
    """Remove the indexes."""
    for name, table, _, _ in _INDEXES:
        op.drop_index(name, table)
