"""Numbers of requests and decisions per subject."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import func, select

from democrai_sandbox.access.values import Effect, RequestState

from .tables import decisions, requests

if TYPE_CHECKING:
    from sqlalchemy import Connection


class SubjectCounts(NamedTuple):
    """Numbers of one subject."""

    pending: int = 0
    requests: int = 0
    """Requests in any state."""
    approvals: int = 0
    """Approvals in force."""
    denials: int = 0
    """Denials in force."""


def by_subject(connection: Connection) -> dict[tuple[str, str], SubjectCounts]:
    """Return the numbers of every subject with requests or decisions, by kind and name."""
    found: dict[tuple[str, str], SubjectCounts] = defaultdict(SubjectCounts)
    asked = (requests.c.subject_kind, requests.c.subject_name, requests.c.state)
    for kind, name, state, number in connection.execute(select(*asked, func.count()).group_by(*asked)):
        counts = found[kind, name]
        pending = number if state == RequestState.PENDING else 0
        found[kind, name] = counts._replace(pending=counts.pending + pending, requests=counts.requests + number)
    decided = (decisions.c.subject_kind, decisions.c.subject_name, decisions.c.effect)
    live = select(*decided, func.count()).where(decisions.c.ended_at.is_(None)).group_by(*decided)
    for kind, name, effect, number in connection.execute(live):
        changed = {"approvals": number} if effect == Effect.APPROVAL else {"denials": number}
        found[kind, name] = found[kind, name]._replace(**changed)
    return dict(found)
