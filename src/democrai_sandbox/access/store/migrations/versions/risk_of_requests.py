"""Risk of each request, for sorting the queue, and an index for earlier decisions about the same access."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from democrai_sandbox.access.store.migrations import create_index

revision = "0006"
down_revision = "0005"
additive = True  # Requests from nodes of the previous version get the default and are assessed later.

_PENDING = "state = 'pending'"
_NOT_ASSESSED = "3"


def upgrade() -> None:
    """Add the column and the indexes, and remove the previous sort index."""
    op.add_column(
        "access_requests", sa.Column("risk", sa.Integer, nullable=False, server_default=sa.text(_NOT_ASSESSED))
    )
    op.drop_index("ix_access_requests_queue", "access_requests")
    create_index("ix_access_requests_risk", "access_requests", ["state", "risk", "id"], _PENDING)
    op.create_index("ix_access_decisions_digest", "access_decisions", ["digest"])


def downgrade() -> None:
    """Remove the column and the indexes, and restore the previous sort index."""
    op.drop_index("ix_access_decisions_digest", "access_decisions")
    op.drop_index("ix_access_requests_risk", "access_requests")
    create_index("ix_access_requests_queue", "access_requests", ["operation", "id"], _PENDING)
    op.drop_column("access_requests", "risk")
