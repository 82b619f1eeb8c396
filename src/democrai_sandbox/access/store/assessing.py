"""Risk of requests: earlier decisions about the same access, and the rank for sorting the queue."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, bindparam, case, func, select, update

from democrai_sandbox.access.risk import NO_HISTORY, NOT_ASSESSED, Assessment, History, assess
from democrai_sandbox.access.values import Effect, Scope

from .journal import SYSTEM
from .rows import to_access
from .tables import decisions, is_pending, requests

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import BindParameter

    from democrai_sandbox.access.values import AccessTuple

_AT_ONCE = 100
_DIGESTS: BindParameter[Any] = bindparam("digests", expanding=True)
_IS_DENIAL = decisions.c.effect == Effect.DENIAL.value
_IS_REVOKED = (
    (decisions.c.effect == Effect.APPROVAL.value)
    & (decisions.c.scope == Scope.PERMANENT.value)
    & decisions.c.ended_at.is_not(None)
    & (decisions.c.ended_by != SYSTEM)
)
_HISTORY = (
    select(
        decisions.c.digest,
        func.sum(case((_IS_DENIAL, 1), else_=0)).label("denials"),
        func.sum(case((_IS_REVOKED, 1), else_=0)).label("revocations"),
    )
    .where(decisions.c.digest.in_(_DIGESTS))
    .group_by(decisions.c.digest)
)
_LEFT = select(requests).where(is_pending, requests.c.risk == NOT_ASSESSED).limit(_AT_ONCE)
_RANK = update(requests).where(requests.c.id == bindparam("its_id")).values(risk=bindparam("rank"))


def histories(connection: Connection, digests: Collection[str]) -> dict[str, History]:
    """Return the earlier decisions about accesses, by digest; accesses without decisions are left out."""
    found = connection.execute(_HISTORY, {"digests": sorted(digests)})
    return {row.digest: History(int(row.denials), int(row.revocations)) for row in found}


def assessments(connection: Connection, access: AccessTuple, targets: Sequence[str] = ()) -> tuple[Assessment, ...]:
    """Return the risk of one access; with targets that cover it, the risk of the same about each of them."""
    others = [replace(access, target=target) for target in targets]
    known = histories(connection, {one.digest for one in (access, *others)})
    own = assess(access, known.get(access.digest, NO_HISTORY))
    if not others:
        return (own,)
    return tuple(assess(one, known.get(one.digest, NO_HISTORY), includes=own) for one in others)


def rank_new(connection: Connection, request_id: str, access: AccessTuple) -> None:
    """Store the rank of a new request."""
    connection.execute(_RANK, {"its_id": request_id, "rank": assessments(connection, access)[0].level.rank})


def rank_waiting(connection: Connection) -> int:
    """Store the rank of a batch of pending requests that have none; return their number."""
    rows = connection.execute(_LEFT).all()
    known = histories(connection, {row.digest for row in rows}) if rows else {}
    ranks = [
        {"its_id": row.id, "rank": assess(to_access(row), known.get(row.digest, NO_HISTORY)).level.rank} for row in rows
    ]
    if ranks:
        connection.execute(_RANK, ranks)
    return len(ranks)
