"""Resumptions: taken under a lease by one node at a time, and finished by the node that holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, or_, select, update

from democrai_sandbox.access.values import AuditAction, ResumeState

from .asking import find_request
from .journal import SYSTEM, Entry, Ledger
from .paging import resume_query
from .rows import to_resume
from .tables import resumes

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Select

    from democrai_sandbox.access.values import Resume


def is_any_due(connection: Connection, *, now: datetime) -> bool:
    """Tell whether there is something to claim: nodes ask often, and mostly there is nothing."""
    return connection.execute(_due(now)).first() is not None


def claim_resume(connection: Connection, *, node: str, lease_until: datetime, now: datetime) -> Resume | None:
    """Take the resumption that is due first; those that another node is just taking are left to it."""
    due = _due(now).with_for_update(skip_locked=True)
    resume_id = connection.execute(due).scalar_one_or_none()
    if resume_id is None:
        return None
    connection.execute(
        update(resumes)
        .where(resumes.c.id == resume_id)
        .values(
            state=ResumeState.RUNNING.value,
            attempts=resumes.c.attempts + 1,
            leased_by=node,
            lease_until=lease_until,
        )
    )
    return to_resume(connection.execute(resume_query().where(resumes.c.id == resume_id)).one())


def finish_resume(
    connection: Connection, *, resume: Resume, node: str, error: str, retry_at: datetime | None, now: datetime
) -> bool:
    """Record how an attempt ended, unless another node has it by now.

    The number of the attempt is compared too: a node may have lost its lease and taken it again.
    """
    ledger = Ledger(connection)
    state = _state(error, retry_at)
    finished = None if state is ResumeState.WAITING else now
    done = connection.execute(
        update(resumes)
        .where(resumes.c.id == resume.id, resumes.c.state == ResumeState.RUNNING.value)
        .where(resumes.c.leased_by == node, resumes.c.attempts == resume.attempts)
        .values(
            state=state.value,
            leased_by="",
            lease_until=None,
            last_error=error,
            finished_at=finished,
            next_attempt=retry_at if state is ResumeState.WAITING else resumes.c.next_attempt,
        )
    )
    if done.rowcount != 1:
        return False
    entry = Entry(
        AuditAction.RESUME_FAILED if error else AuditAction.RESUME_SUCCEEDED,
        SYSTEM,
        find_request(connection, resume.request_id).access,
        resume.request_id,
        after={"resume": resume.id, "action": resume.action, "node": node, "attempt": resume.attempts, "error": error}
        | {"state": state.value},
    )
    ledger.close([entry], now=now)
    return True


def _due(now: datetime) -> Select[Any]:
    waiting = and_(resumes.c.state == ResumeState.WAITING.value, resumes.c.next_attempt <= now)
    abandoned = and_(resumes.c.state == ResumeState.RUNNING.value, resumes.c.lease_until <= now)
    return (
        select(resumes.c.id)
        .where(resumes.c.finished_at.is_(None), or_(waiting, abandoned))
        .order_by(resumes.c.next_attempt, resumes.c.id)
        .limit(1)
    )


def _state(error: str, retry_at: datetime | None) -> ResumeState:
    if not error:
        return ResumeState.SUCCEEDED
    return ResumeState.FAILED if retry_at is None else ResumeState.WAITING
