"""Queries: lists in pages, the ranked queue of pending requests, earlier decisions, statistics."""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection, and_, bindparam, func, literal, literal_column, select, tuple_

from democrai_sandbox.access import values
from democrai_sandbox.access.verdicts import NO_HISTORY, NOT_ASSESSED, History, RiskAssessment, assess
from democrai_sandbox.errors.access import AuditRecordUnknown
from democrai_sandbox.policy import InvalidInputError, ResourceType, is_at_or_below, parse_declaration
from democrai_sandbox.policy.hosts import host_key

from . import tables
from .audit_log import SYSTEM
from .tables import audit, decisions, is_pending, meta, requests, resumes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from datetime import datetime

    from sqlalchemy import BindParameter, Column, ColumnElement, Row, Select

    from democrai_sandbox.policy import Subject

LARGEST_PAGE = 1000
LONGEST_TEXT = 1000
"""Maximum length of a search text, because SQLite limits the length of a pattern."""


def list_requests(connection: Connection, wanted: values.RequestFilter, page: values.PageRequest) -> values.ResultPage:
    """List requests, the most recently seen first."""
    table = requests.c
    query = select(*tables.REQUEST_COLUMNS).where(*of_requests(requests, wanted))
    if wanted.states:
        query = query.where(table.state.in_([str(state) for state in wanted.states]))
    return _page(connection, query, [table.last_seen, table.id], page, tables.to_request)


def of_requests(table: Any, wanted: values.RequestFilter) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions of a filter, except the state, for a table or subquery of requests."""
    yield from _common(table, wanted)
    if wanted.subject_kind:
        yield table.c.subject_kind == str(wanted.subject_kind)
    for name in ("user_id", "organization_id", "session_key"):
        if value := getattr(wanted, name):
            yield table.c[name] == value
    if wanted.newer_than is not None:
        yield table.c.first_seen >= wanted.newer_than
    if wanted.older_than is not None:
        yield table.c.first_seen < wanted.older_than


def list_decisions(
    connection: Connection, wanted: values.DecisionFilter, page: values.PageRequest
) -> values.ResultPage:
    """List decisions, the newest first."""
    table = decisions.c
    query = select(decisions).where(*_common(decisions, wanted))
    for name in ("effect", "scope", "session_key"):
        if value := getattr(wanted, name):
            query = query.where(table[name] == str(value))
    if wanted.live is not None:
        query = query.where(table.ended_at.is_(None) if wanted.live else table.ended_at.is_not(None))
    return _page(connection, query, [table.created_at, table.id], page, tables.to_decision)


def list_audit(connection: Connection, wanted: values.AuditFilter, page: values.PageRequest) -> values.ResultPage:
    """List audit records, the newest first."""
    table = audit.c
    query = select(audit).where(*_of_subject(audit, wanted.subject))
    if wanted.actions:
        query = query.where(table.action.in_([str(action) for action in wanted.actions]))
    for name in ("actor", "request_id"):
        if value := getattr(wanted, name):
            query = query.where(table[name] == value)
    if wanted.since is not None:
        query = query.where(table.at >= wanted.since)
    if wanted.until is not None:
        query = query.where(table.at < wanted.until)
    return _page(connection, query, [table.sequence], page, tables.to_audit_record)


def list_resumes(connection: Connection, *, unfinished: bool, page: values.PageRequest) -> values.ResultPage:
    """List resumptions, the newest first."""
    query = resume_query()
    if unfinished:
        query = query.where(resumes.c.finished_at.is_(None))
    return _page(connection, query, [resumes.c.created_at, resumes.c.id], page, tables.to_resume)


def resume_query() -> Select[Any]:
    """Select resumptions with the identity of their requests."""
    asked = ("resume_action", "user_id", "organization_id", "session_key", "task_id", "subject_kind", "subject_name")
    return select(resumes, *(requests.c[name] for name in asked)).join(requests, requests.c.id == resumes.c.request_id)


def _common(table: Any, wanted: values.RequestFilter | values.DecisionFilter) -> Iterator[ColumnElement[bool]]:
    yield from _of_subject(table, wanted.subject)
    for name in ("resource_type", "operation"):
        if value := getattr(wanted, name):
            yield table.c[name] == str(value)
    if len(wanted.text) > LONGEST_TEXT:
        raise InvalidInputError.of(f"expected at most {LONGEST_TEXT} characters", pointer="/text")
    if wanted.text:
        yield table.c.target_folded.contains(wanted.text.casefold(), autoescape=True)


def _of_subject(table: Any, subject: Subject | None) -> Iterator[ColumnElement[bool]]:
    if subject is not None:
        yield table.c.subject_kind == subject.kind.value
        yield table.c.subject_name == subject.name


def _page(
    connection: Connection,
    query: Select[Any],
    order: list[Column[Any]],
    page: values.PageRequest,
    to_value: Callable[[Row[Any]], Any],
) -> values.ResultPage:
    """Return one page. One more row is read to detect a next page."""
    check_limit(page)
    place = str(order[-1])
    if page.after:
        last = read_mark(page.after, place, order)
        bound = [literal(value, column.type) for value, column in zip(last, order, strict=True)]
        query = query.where(tuple_(*order) < tuple_(*bound))
    query = query.order_by(*(column.desc() for column in order)).limit(page.limit + 1)
    rows = connection.execute(query).all()
    shown = rows[: page.limit]
    more = write_mark(place, [shown[-1]._mapping[column] for column in order]) if len(rows) > page.limit else ""  # noqa: SLF001 - documented
    return values.ResultPage(tuple(map(to_value, shown)), more)


def check_limit(page: values.PageRequest) -> None:
    """Reject a page size outside the limits."""
    if type(page.limit) is not int or not 1 <= page.limit <= LARGEST_PAGE:
        message = f"expected an integer from 1 to {LARGEST_PAGE}, got {page.limit!r}"
        raise InvalidInputError.of(message, pointer="/limit")


def write_mark(place: str, last: Sequence[Any]) -> str:
    """Return the cursor after a page; ``place`` names the list."""
    plain = [value if isinstance(value, int | str) else values.to_micros(value) for value in last]
    return base64.urlsafe_b64encode(json.dumps([place, *plain]).encode()).decode().rstrip("=")


def read_mark(text: str, place: str, order: Sequence[Column[Any]]) -> list[Any]:
    """Return the values of the last item, or reject a cursor that does not belong to this list."""
    try:
        named, *plain = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
        last = [_typed(value, column) for value, column in zip(plain, order, strict=True)]
    except (ValueError, TypeError, OverflowError, RecursionError):
        named, last = None, []
    if named != place:
        raise InvalidInputError.of("this cursor does not belong to this list", pointer="/after")
    return last


def _typed(value: object, column: Column[Any]) -> Any:
    if isinstance(column.type, tables.AnyText) and type(value) is str:
        return value
    if isinstance(column.type, tables.AnyText) or type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return values.from_micros(value) if isinstance(column.type, tables.Moment) else value


_ALIKE = 100
_OF_SUBJECT = 300
_OF_OTHERS = 2000
_MEASURED = 10_000
_HIGHEST = 1 << 63

_PULSE = select(meta.c.generation, meta.c.audit_sequence)
_OLDEST = select(requests.c.first_seen).where(is_pending).order_by(requests.c.first_seen).limit(1)


def pulse(connection: Connection) -> tuple[int, int]:
    """Return the generation and the audit sequence. They change with every change on any node."""
    row = connection.execute(_PULSE).one()
    return row.generation, row.audit_sequence


def oldest_pending(connection: Connection) -> datetime | None:
    """Return the time of the oldest pending request, or None."""
    found: datetime | None = connection.execute(_OLDEST).scalar_one_or_none()
    return found


def decision_seconds(connection: Connection, since: datetime, until: datetime | None = None) -> tuple[float, ...]:
    """Return the waiting time of each request that was decided from ``since`` on and before ``until``."""
    table = requests.c
    query = select(table.first_seen, table.decided_at).where(table.decided_at.is_not(None), table.decided_at >= since)
    if until is not None:
        query = query.where(table.decided_at < until)
    rows = connection.execute(query.order_by(table.decided_at).limit(_MEASURED))
    # Never negative, although the clocks of nodes differ a little.
    return tuple(max(0.0, (decided - asked).total_seconds()) for asked, decided in rows)


def find_record(connection: Connection, sequence: int) -> values.AuditRecord:
    """Return one audit record; raises ``AuditRecordUnknown``."""
    row = None
    if 0 < sequence < _HIGHEST:
        row = connection.execute(select(audit).where(audit.c.sequence == sequence)).one_or_none()
    if row is None:
        raise AuditRecordUnknown(f"audit record {sequence} does not exist")
    return tables.to_audit_record(row)


def find_resume(connection: Connection, request_id: str) -> values.Resumption | None:
    """Return the resumption of a request, or None if it was not started."""
    row = connection.execute(resume_query().where(resumes.c.request_id == request_id)).one_or_none()
    return None if row is None else tables.to_resume(row)


def waiting_for(connection: Connection, access: values.AccessTuple) -> tuple[values.StoredRequest, ...]:
    """Return the pending requests for an access in any spelling, the newest first, at most 100."""
    query = select(*tables.REQUEST_COLUMNS).where(is_pending, requests.c.digest == access.digest)
    rows = connection.execute(query.order_by(requests.c.id.desc()).limit(_ALIKE))
    return tuple(map(tables.to_request, rows))


def similar(connection: Connection, access: values.AccessTuple) -> tuple[values.Decision, ...]:
    """Return decisions that are similar to a request for this access, as ``similar_first`` sorts them.

    They include ended decisions. Only the latest decisions about the subject and resource type, and of other subjects
    about the target, are searched.
    """
    subject, table = access.subject, decisions.c
    latest = select(decisions).order_by(table.created_at.desc(), table.id.desc())
    of_subject = latest.where(*_of_subject(decisions, subject), table.resource_type == access.resource_type.value)
    newest = latest.limit(_OF_OTHERS).subquery()
    which = and_(newest.c.target == access.target, newest.c.resource_type == access.resource_type.value)
    same = and_(*_of_subject(newest, subject))
    of_target = select(newest).where(which, sa.not_(same)).order_by(newest.c.created_at.desc(), newest.c.id.desc())
    rows = (*connection.execute(of_subject.limit(_OF_SUBJECT)), *connection.execute(of_target))
    return similar_first(access, map(tables.to_decision, rows))


def similar_first(access: values.AccessTuple, found: Iterable[values.Decision]) -> tuple[values.Decision, ...]:
    """Return the related decisions: about the same access, nearby targets, other subjects; each newest first."""
    near = [decision for decision in found if decision.access == access or _is_near(access, decision.access)]
    near.sort(key=lambda decision: decision.created_at, reverse=True)
    return tuple(sorted(near, key=lambda found: (found.access != access, found.access.subject != access.subject)))


def _is_near(access: values.AccessTuple, other: values.AccessTuple) -> bool:
    """Return whether a decision is about the same target, URL host or folder."""
    if other.resource_type is not access.resource_type:
        return False
    if other.target == access.target:
        return True
    if other.subject != access.subject:
        return False
    if access.resource_type is ResourceType.NETWORK:
        host = _host(access.target)
        return host is not None and host == _host(other.target)
    if access.resource_type is ResourceType.FILESYSTEM:
        folder = access.target.rpartition("/")[0] or "/"
        return is_at_or_below(access.target, other.target) or (folder != "/" and is_at_or_below(other.target, folder))
    return False


def _host(target: str) -> str | None:
    try:
        parsed = parse_declaration(target)
    except InvalidInputError:
        return None
    return host_key(parsed.host) if parsed.host else parsed.socket


class SubjectCounts(NamedTuple):
    """Numbers of one subject."""

    pending: int = 0
    requests: int = 0
    """Requests in any state."""
    approvals: int = 0
    """Approvals in force."""
    denials: int = 0
    """Denials in force."""


def count_by_subject(connection: Connection) -> dict[tuple[str, str], SubjectCounts]:
    """Return the numbers of every subject with requests or decisions, by kind and name."""
    found: dict[tuple[str, str], SubjectCounts] = defaultdict(SubjectCounts)
    asked = (requests.c.subject_kind, requests.c.subject_name, requests.c.state)
    for kind, name, state, number in connection.execute(select(*asked, func.count()).group_by(*asked)):
        counts = found[kind, name]
        pending = number if state == values.RequestState.PENDING else 0
        found[kind, name] = counts._replace(pending=counts.pending + pending, requests=counts.requests + number)
    decided = (decisions.c.subject_kind, decisions.c.subject_name, decisions.c.effect)
    live = select(*decided, func.count()).where(decisions.c.ended_at.is_(None)).group_by(*decided)
    for kind, name, effect, number in connection.execute(live):
        changed = {"approvals": number} if effect == values.DecisionEffect.APPROVAL else {"denials": number}
        found[kind, name] = found[kind, name]._replace(**changed)
    return dict(found)


# ---- queue of pending requests: ranked by risk and grouped by access, with counts

_RANKED_AT_ONCE = 100
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
        func.sum(sa.case((_IS_DENIAL, 1), else_=0)).label("denials"),
        func.sum(sa.case((_IS_REVOKED, 1), else_=0)).label("revocations"),
    )
    .where(decisions.c.digest.in_(_DIGESTS))
    .group_by(decisions.c.digest)
)
_LEFT = select(requests).where(is_pending, requests.c.risk == NOT_ASSESSED).limit(_RANKED_AT_ONCE)
_SET_RANK = sa.update(requests).where(requests.c.id == bindparam("its_id")).values(risk=bindparam("rank"))


def histories(connection: Connection, digests: Collection[str]) -> dict[str, History]:
    """Return the earlier decisions about accesses, by digest."""
    found = connection.execute(_HISTORY, {"digests": sorted(digests)})
    known = {row.digest: History(int(row.denials), int(row.revocations)) for row in found}
    return dict.fromkeys(digests, NO_HISTORY) | known


def assessments(
    connection: Connection, access: values.AccessTuple, targets: Sequence[str] = ()
) -> tuple[RiskAssessment, ...]:
    """Return the risk of approving an access, from its target and from earlier decisions about it.

    With targets that cover it, return the risk of the same about each of them instead.
    """
    others = [replace(access, target=target) for target in targets]
    known = histories(connection, {one.digest for one in (access, *others)})
    own = assess(access, known[access.digest])
    if not others:
        return (own,)
    return tuple(assess(one, known[one.digest], includes=own) for one in others)


def rank_new(connection: Connection, request_id: str, access: values.AccessTuple) -> None:
    """Store the rank of a new request."""
    connection.execute(_SET_RANK, {"its_id": request_id, "rank": assessments(connection, access)[0].level.rank})


def rank_waiting(connection: Connection) -> int:
    """Assess a batch of pending requests that an earlier version stored without a risk; return their number."""
    rows = connection.execute(_LEFT).all()
    known = histories(connection, {row.digest for row in rows}) if rows else {}
    ranks = [{"its_id": row.id, "rank": assess(tables.to_access(row), known[row.digest]).level.rank} for row in rows]
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
_RANK = bindparam("rank", type_=sa.Integer)
_LAST = bindparam("last", type_=requests.c.id.type)
_MOST = bindparam("most", type_=sa.Integer)
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
    pending: ColumnElement[str] = literal_column(f"'{values.RequestState.PENDING.value}'")
    query = (
        select(others.c.id)
        .where(others.c.state == pending, others.c.digest == head.c.digest, *of_requests(others, wanted))
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
    return [_group(head, totals[head.digest], users.get(head.digest, ()), known[head.digest]) for head in heads]


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
            func.count(func.nullif(table.user_id, "").distinct()).label("user_count"),
            func.count(func.nullif(table.session_key, "").distinct()).label("session_count"),
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
    access = tables.to_access(head)
    risk = assess(access, history)
    return tables.from_row(
        values.PendingGroup,
        total,
        access=access,
        newest_id=head.id,
        count=int(total.times),
        users=tuple(users),
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
