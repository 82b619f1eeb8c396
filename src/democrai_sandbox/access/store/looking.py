"""Statistics and lookups for consoles and monitors: changes, waiting times, earlier decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, not_, select

from democrai_sandbox.errors.access import AuditRecordUnknown

from .paging import resume_query
from .rows import REQUEST_COLUMNS, to_audit_record, to_decision, to_request, to_resume
from .tables import audit, decisions, is_pending, meta, requests, resumes

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import ColumnElement, Select

    from democrai_sandbox.access.values import AccessTuple, AuditRecord, Decision, Request, Resume

_ALIKE = 100
_OF_SUBJECT = 300
_OF_OTHERS = 2000
_MEASURED = 10_000
_HIGHEST = 1 << 63

_PULSE = select(meta.c.generation, meta.c.audit_sequence)
_OLDEST = select(requests.c.first_seen).where(is_pending).order_by(requests.c.first_seen).limit(1)


def pulse(connection: Connection) -> tuple[int, int]:
    """Return two numbers, one of which grows with every decision, new request or note."""
    row = connection.execute(_PULSE).one()
    return row.generation, row.audit_sequence


def oldest_pending(connection: Connection) -> datetime | None:
    """Return the time of the oldest pending request."""
    found: datetime | None = connection.execute(_OLDEST).scalar_one_or_none()
    return found


def decision_seconds(connection: Connection, *, since: datetime, until: datetime | None) -> tuple[float, ...]:
    """Return the waiting time of each request that was decided from ``since`` on and before ``until``."""
    table = requests.c
    query = select(table.first_seen, table.decided_at).where(table.decided_at.is_not(None), table.decided_at >= since)
    if until is not None:
        query = query.where(table.decided_at < until)
    rows = connection.execute(query.order_by(table.decided_at).limit(_MEASURED))
    # Never negative, although the clocks of nodes differ a little.
    return tuple(max(0.0, (decided - asked).total_seconds()) for asked, decided in rows)


def find_record(connection: Connection, sequence: int) -> AuditRecord:
    """Return one audit record."""
    row = None
    if 0 < sequence < _HIGHEST:
        row = connection.execute(select(audit).where(audit.c.sequence == sequence)).one_or_none()
    if row is None:
        raise AuditRecordUnknown(f"audit record {sequence} does not exist")
    return to_audit_record(row)


def find_resume(connection: Connection, request_id: str) -> Resume | None:
    """Return the resumption of a request, or None if it was not started."""
    row = connection.execute(resume_query().where(resumes.c.request_id == request_id)).one_or_none()
    return None if row is None else to_resume(row)


def waiting_for(connection: Connection, access: AccessTuple) -> tuple[Request, ...]:
    """Return the pending requests for an access, the newest first."""
    query = select(*REQUEST_COLUMNS).where(is_pending, requests.c.digest == access.digest)
    rows = connection.execute(query.order_by(requests.c.id.desc()).limit(_ALIKE))
    return tuple(map(to_request, rows))


def of_same_subject(connection: Connection, access: AccessTuple) -> tuple[Decision, ...]:
    """Return the latest decisions about a subject and resource type, including ended ones."""
    return _latest(connection, _all().where(*_subject(access), _kind(access)).limit(_OF_SUBJECT))


def of_same_target(connection: Connection, access: AccessTuple) -> tuple[Decision, ...]:
    """Return decisions about a target for other subjects, among the latest decisions."""
    newest = _all().limit(_OF_OTHERS).subquery()
    which = and_(newest.c.target == access.target, newest.c.resource_type == access.resource_type.value)
    same = and_(
        newest.c.subject_kind == access.subject.kind.value,
        newest.c.subject_name == access.subject.name,
    )
    query = select(newest).where(which, not_(same)).order_by(newest.c.created_at.desc(), newest.c.id.desc())
    return _latest(connection, query)


def _all() -> Select[Any]:
    return select(decisions).order_by(decisions.c.created_at.desc(), decisions.c.id.desc())


def _subject(access: AccessTuple) -> tuple[ColumnElement[bool], ...]:
    subject = access.subject
    return decisions.c.subject_kind == subject.kind.value, decisions.c.subject_name == subject.name


def _kind(access: AccessTuple) -> ColumnElement[bool]:
    found: ColumnElement[bool] = decisions.c.resource_type == access.resource_type.value
    return found


def _latest(connection: Connection, query: Select[Any]) -> tuple[Decision, ...]:
    return tuple(map(to_decision, connection.execute(query)))
