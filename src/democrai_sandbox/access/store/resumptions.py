"""Resumptions: created with an approval, claimed under a lease, finished by the node that holds the lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, insert, or_, select, update

from democrai_sandbox.access.audit import access_dict
from democrai_sandbox.access.snapshot import covers
from democrai_sandbox.access.values import AuditAction, DecisionEffect, ResumptionState, new_id

from .audit_log import SYSTEM, AuditEntry, Ledger
from .queries import resume_query
from .requests import find_request
from .rows import to_access, to_resume
from .tables import decisions, is_denial, is_live, requests, resumes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from sqlalchemy import Row, Select

    from democrai_sandbox.access.values import AccessTuple, Decision, Resumption, StoredRequest

_APPROVAL_ENDED = "the approval has ended"


def add_resumes(
    connection: Connection, answered: Sequence[StoredRequest], approval: Decision, *, now: datetime
) -> list[dict[str, str]]:
    """Create the resumptions of approved requests; return their audit form."""
    going_on = [request for request in answered if request.resume_action]
    rows = [
        {
            "id": new_id(),
            "request_id": request.id,
            "decision_id": approval.id,
            "state": ResumptionState.WAITING.value,
            "attempts": 0,
            "created_at": now,
            "next_attempt": now,
            "leased_by": "",
            "last_error": "",
        }
        for request in going_on
    ]
    if rows:
        connection.execute(insert(resumes), rows)
    return [{"request": request.id, "action": request.resume_action} for request in going_on]


def is_any_due(connection: Connection, *, now: datetime) -> bool:
    """Return whether a resumption is due. A cheap check, because nodes ask often and mostly nothing is due."""
    return connection.execute(_due(now)).first() is not None


def claim_resume(connection: Connection, *, node: str, lease_until: datetime, now: datetime) -> Resumption | None:
    """Claim the first due resumption; return None if none is due, or if it failed because its approval has ended.

    Decisions change under the ledger too, so a claimed resumption is approved at that moment.
    """
    ledger = Ledger(connection)
    resume_id = connection.execute(_due(now)).scalar_one_or_none()
    if resume_id is None:
        return None
    its_row = resume_query().where(resumes.c.id == resume_id)
    due = connection.execute(its_row).one()
    access = find_request(connection, due.request_id).access
    if not _is_approved(connection, due, access, now):
        connection.execute(
            update(resumes)
            .where(resumes.c.id == resume_id)
            .values(_left(ResumptionState.FAILED, _APPROVAL_ENDED) | {"finished_at": now})
        )
        ledger.close([_audit_entry(to_resume(due), access, node, ResumptionState.FAILED, _APPROVAL_ENDED)], now=now)
        return None
    connection.execute(
        update(resumes)
        .where(resumes.c.id == resume_id)
        .values(
            state=ResumptionState.RUNNING.value,
            attempts=resumes.c.attempts + 1,
            leased_by=node,
            lease_until=lease_until,
        )
    )
    return to_resume(connection.execute(its_row).one())


def finish_resume(
    connection: Connection, resume: Resumption, *, node: str, error: str, retry_at: datetime | None, now: datetime
) -> bool:
    """Store the result of an attempt: no error means success, an error without ``retry_at`` means final failure.

    After a success the context is removed. Returns False and writes nothing if another node holds the lease or the
    resumption is finished.
    The attempt number is compared too, because a node may have lost its lease and claimed it again.
    """
    ledger = Ledger(connection)
    state = _state(error, retry_at)
    when = {"next_attempt": retry_at} if state is ResumptionState.WAITING else {"finished_at": now}
    done = connection.execute(
        update(resumes)
        .where(resumes.c.id == resume.id, resumes.c.state == ResumptionState.RUNNING.value)
        .where(resumes.c.leased_by == node, resumes.c.attempts == resume.attempts)
        .values(_left(state, error) | when)
    )
    if done.rowcount != 1:
        return False
    if state is ResumptionState.SUCCEEDED:
        # The context is not needed anymore, and removed data cannot leak.
        connection.execute(update(requests).where(requests.c.id == resume.request_id).values(resume_context=None))
    access = find_request(connection, resume.request_id).access
    ledger.close([_audit_entry(resume, access, node, state, error)], now=now)
    return True


def _is_approved(connection: Connection, resume: Row[Any], access: AccessTuple, now: datetime) -> bool:
    """Return whether a resumption is still approved, by its original decision or by a later one."""
    in_force = and_(is_live, or_(decisions.c.expires_at.is_(None), decisions.c.expires_at > now))
    began = select(decisions.c.digest).where(decisions.c.id == resume.decision_id).scalar_subquery()
    approved = (
        select(decisions.c.id)
        .where(in_force, decisions.c.effect == DecisionEffect.APPROVAL.value)
        .where(or_(decisions.c.digest == access.digest, decisions.c.digest == began))
        .where(decisions.c.session_key.in_(["", resume.session_key]))
        .limit(1)
    )
    if connection.execute(approved).first() is None:
        return False
    same_place = [decisions.c[name] == value for name, value in access_dict(access).items() if name != "target"]
    denied = select(decisions).where(in_force, is_denial, *same_place)
    return not any(covers(to_access(row), access) for row in connection.execute(denied))


def _left(state: ResumptionState, error: str) -> dict[str, Any]:
    """Return the columns of a resumption without a lease."""
    return {"state": state.value, "leased_by": "", "lease_until": None, "last_error": error}


def _audit_entry(resume: Resumption, access: AccessTuple, node: str, state: ResumptionState, error: str) -> AuditEntry:
    after = {"resume": resume.id, "action": resume.action, "node": node, "attempt": resume.attempts}
    action = AuditAction.RESUME_FAILED if error else AuditAction.RESUME_SUCCEEDED
    return AuditEntry(action, SYSTEM, access, resume.request_id, after=after | {"error": error, "state": state.value})


def _due(now: datetime) -> Select[Any]:
    waiting = and_(resumes.c.state == ResumptionState.WAITING.value, resumes.c.next_attempt <= now)
    abandoned = and_(resumes.c.state == ResumptionState.RUNNING.value, resumes.c.lease_until <= now)
    return (
        select(resumes.c.id)
        .where(resumes.c.finished_at.is_(None), or_(waiting, abandoned))
        .order_by(resumes.c.next_attempt, resumes.c.id)
        .limit(1)
    )


def _state(error: str, retry_at: datetime | None) -> ResumptionState:
    if not error:
        return ResumptionState.SUCCEEDED
    return ResumptionState.FAILED if retry_at is None else ResumptionState.WAITING
