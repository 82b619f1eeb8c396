"""Queue of pending requests: ranked by risk and grouped by access, with counts."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Integer, and_, bindparam, case, func, literal_column, select, tuple_, update

from democrai_sandbox.access import values
from democrai_sandbox.access.risk import NO_HISTORY, NOT_ASSESSED, History, RiskAssessment, assess
from democrai_sandbox.policy import InvalidInputError

from .audit_log import SYSTEM
from .queries import check_limit, of_requests, read_mark, write_mark
from .tables import decisions, is_pending, requests, to_access

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import BindParameter, ColumnElement, Row, Select


_AT_ONCE = 100
_DIGESTS: BindParameter[Any] = bindparam("digests", expanding=True)
_IS_DENIAL = decisions.c.effect == values.DecisionEffect.DENIAL.value
_IS_REVOKED = (
    (decisions.c.effect == values.DecisionEffect.APPROVAL.value)
    & (decisions.c.scope == values.DecisionScope.PERMANENT.value)
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
_SET_RANK = update(requests).where(requests.c.id == bindparam("its_id")).values(risk=bindparam("rank"))


def histories(connection: Connection, digests: Collection[str]) -> dict[str, History]:
    """Return the earlier decisions about accesses, by digest; accesses without decisions are left out."""
    found = connection.execute(_HISTORY, {"digests": sorted(digests)})
    return {row.digest: History(int(row.denials), int(row.revocations)) for row in found}


def assessments(
    connection: Connection, access: values.AccessTuple, targets: Sequence[str] = ()
) -> tuple[RiskAssessment, ...]:
    """Return the risk of approving an access, from its target and from earlier decisions about it.

    With targets that cover it, return the risk of the same about each of them instead.
    """
    others = [replace(access, target=target) for target in targets]
    known = histories(connection, {one.digest for one in (access, *others)})
    own = assess(access, known.get(access.digest, NO_HISTORY))
    if not others:
        return (own,)
    return tuple(assess(one, known.get(one.digest, NO_HISTORY), includes=own) for one in others)


def rank_new(connection: Connection, request_id: str, access: values.AccessTuple) -> None:
    """Store the rank of a new request."""
    connection.execute(_SET_RANK, {"its_id": request_id, "rank": assessments(connection, access)[0].level.rank})


def rank_waiting(connection: Connection) -> int:
    """Assess a batch of pending requests that an earlier version stored without a risk; return their number."""
    rows = connection.execute(_LEFT).all()
    known = histories(connection, {row.digest for row in rows}) if rows else {}
    ranks = [
        {"its_id": row.id, "rank": assess(to_access(row), known.get(row.digest, NO_HISTORY)).level.rank} for row in rows
    ]
    if ranks:
        connection.execute(_SET_RANK, ranks)
    return len(ranks)


MOST_COUNTED = 10_000
"""Maximum count; only the latest part of the history is counted."""

_PLACE = "queue"
_MARK = (requests.c.risk, requests.c.id)
_SHOWN = ("id", "digest", "subject_kind", "subject_name", "resource_type", "operation", "target", "chain", "risk")
_IDENTITY = ("user_id", "organization_id", "session_key")
_FILTERED = (*_IDENTITY, "subject_kind", "subject_name", "resource_type", "operation", "target_folded", "first_seen")
_EVERYTHING = values.RequestFilter()
_RANK = bindparam("rank", type_=Integer)
_LAST = bindparam("last", type_=requests.c.id.type)
_MOST = bindparam("most", type_=Integer)
_REMEMBERED = 64


def list_queue(connection: Connection, wanted: values.RequestFilter, page: values.PageRequest) -> values.ResultPage:
    """List groups (``PendingGroup``) of pending requests that match a filter, by risk, then by their newest request.

    A group moves only when another user requests the same access; repeated requests do not move it between pages.

    The cost of a page does not depend on the number of pending requests: an index is read from the highest risk and the
    newest request, only the newest request of a group counts, and only the groups of the page are summed up.
    """
    check_limit(page)
    if any(state != values.RequestState.PENDING for state in wanted.states):
        raise InvalidInputError.of("the queue contains only pending requests", pointer="/states")
    narrowed = replace(wanted, states=())
    rank, last = read_mark(page.after, _PLACE, _MARK) if page.after else (None, "")
    query = _heads(narrowed, is_first=rank is None)
    rows = connection.execute(query, {"rank": rank, "last": last, "most": page.limit + 1}).all()
    shown = rows[: page.limit]
    more = write_mark(_PLACE, [shown[-1].risk, shown[-1].id]) if len(rows) > page.limit else ""
    return values.ResultPage(tuple(_groups(connection, narrowed, shown)), more)


def count_states(connection: Connection, wanted: values.RequestFilter) -> dict[values.RequestState, int]:
    """Count the requests of each state in the filter, or of all; at most the latest ``MOST_COUNTED`` of each."""
    states = _states(wanted) or tuple(values.RequestState)
    row = connection.execute(_counts(replace(wanted, states=states)), {"most": MOST_COUNTED}).one()
    return {state: int(getattr(row, state.value)) for state in states}


def _states(wanted: values.RequestFilter) -> tuple[values.RequestState, ...]:
    try:
        return tuple(dict.fromkeys(map(values.RequestState, wanted.states)))
    except ValueError as error:
        raise InvalidInputError.of(str(error), pointer="/states") from None


@lru_cache(maxsize=_REMEMBERED)
def _counts(wanted: values.RequestFilter) -> Select[Any]:
    narrowed = replace(wanted, states=())
    return select(*(_count(state, narrowed).scalar_subquery().label(state.value) for state in wanted.states))


# Cached, because building these statements takes longer than running them, and users mostly view the same page.
@lru_cache(maxsize=_REMEMBERED)
def _heads(wanted: values.RequestFilter, *, is_first: bool) -> Select[Any]:
    """Select the newest request of each group, up to the page size."""
    table = requests.c
    query = (
        select(*(table[name] for name in _SHOWN))
        .where(is_pending, *of_requests(requests, wanted))
        .where(table.id == _newest(requests, wanted))
        .order_by(table.risk.desc(), table.id.desc())
        .limit(_MOST)
    )
    return query if is_first else query.where(tuple_(table.risk, table.id) < tuple_(_RANK, _LAST))


def _newest(head: Any, wanted: values.RequestFilter) -> Any:
    others = requests.alias("others")
    query = (
        select(others.c.id)
        .where(_pending(others), others.c.digest == head.c.digest, *of_requests(others, wanted))
        .order_by(others.c.id.desc())
        .limit(1)
    )
    return query.correlate(head).scalar_subquery()


def _groups(
    connection: Connection, wanted: values.RequestFilter, heads: Sequence[Row[Any]]
) -> list[values.PendingGroup]:
    if not heads:
        return []
    digests = {"digests": [head.digest for head in heads]}
    totals = {row.digest: row for row in connection.execute(_totals(wanted), digests)}
    users: dict[str, list[str]] = {}
    for row in connection.execute(_users(wanted), digests):
        users.setdefault(row.digest, []).append(row.user_id)
    known = histories(connection, digests["digests"])
    return [
        _group(head, totals[head.digest], users.get(head.digest, ()), known.get(head.digest, NO_HISTORY))
        for head in heads
    ]


def _members(wanted: values.RequestFilter) -> ColumnElement[bool]:
    return and_(is_pending, requests.c.digest.in_(_DIGESTS), *of_requests(requests, wanted))


@lru_cache(maxsize=_REMEMBERED)
def _totals(wanted: values.RequestFilter) -> Select[Any]:
    table = requests.c
    return (
        select(
            table.digest,
            func.count().label("requests"),
            func.sum(table["count"]).label("times"),
            func.count(func.nullif(table.user_id, "").distinct()).label("users"),
            func.count(func.nullif(table.session_key, "").distinct()).label("sessions"),
            func.min(table.first_seen).label("first_seen"),
            func.max(table.last_seen).label("last_seen"),
        )
        .where(_members(wanted))
        .group_by(table.digest)
    )


@lru_cache(maxsize=_REMEMBERED)
def _users(wanted: values.RequestFilter) -> Select[Any]:
    """Select the latest users of each group."""
    table = requests.c
    latest = (
        select(table.digest, table.user_id, func.max(table.id).label("latest"))
        .where(_members(wanted), table.user_id != "")
        .group_by(table.digest, table.user_id)
        .subquery()
    )
    place = func.row_number().over(partition_by=latest.c.digest, order_by=latest.c.latest.desc()).label("place")
    placed = select(latest, place).subquery()
    named = select(placed.c.digest, placed.c.user_id).where(placed.c.place <= values.MOST_USERS)
    return named.order_by(placed.c.digest, placed.c.place)


def _group(head: Row[Any], total: Row[Any], users: Sequence[str], history: History) -> values.PendingGroup:
    access = to_access(head)
    risk = assess(access, history)
    return values.PendingGroup(
        access=access,
        newest_id=head.id,
        requests=total.requests,
        count=int(total.times),
        users=tuple(users),
        user_count=total.users,
        session_count=total.sessions,
        first_seen=total.first_seen,
        last_seen=total.last_seen,
        risk=risk.level,
        risk_reasons=risk.reasons,
        chain=tuple(json.loads(head.chain)),
    )


def _count(state: values.RequestState, wanted: values.RequestFilter) -> Select[Any]:
    table = requests.c
    query = select(*(table[name] for name in _FILTERED)).where(table.state == literal_column(f"'{state.value}'"))
    if wanted == _EVERYTHING or state is values.RequestState.PENDING:
        # Pending requests are not part of the history and have separate indexes.
        found = query.where(*of_requests(requests, wanted)).with_only_columns(table.id)
        return select(func.count()).select_from(found.limit(_MOST).subquery())
    newest = query.order_by(table.last_seen.desc(), table.id.desc()).limit(_MOST).subquery()
    return select(func.count()).select_from(newest).where(*of_requests(newest, wanted))


def _pending(table: Any) -> ColumnElement[bool]:
    found: ColumnElement[bool] = table.c.state == literal_column(f"'{values.RequestState.PENDING.value}'")
    return found
