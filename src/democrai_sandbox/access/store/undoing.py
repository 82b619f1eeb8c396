"""Undo of a decision: end it, reopen the requests it answered, and restore the decisions it replaced."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, delete, exists, or_, select, update

from democrai_sandbox.access.values import Aftermath, RequestState, ResumeState, Undone
from democrai_sandbox.errors import DecisionConflict

from .deciding import check_live, end_decisions, find_decision, outcome_of, revocation, show_end, summary
from .journal import Ledger
from .rows import to_audit_record, to_decision
from .tables import audit, decisions, ended_sessions, is_live, is_pending, requests, resumes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement

    from democrai_sandbox.access.values import AuditRecord, Decision

_WAITING: Mapping[str, Any] = MappingProxyType(
    {
        "state": RequestState.PENDING.value,
        **dict.fromkeys(("decided_at", "decision_id", "ended_at")),
        **dict.fromkeys(("decided_by", "ended_by", "reason"), ""),
    }
)
"""Columns of an unanswered request."""


def find_aftermath(connection: Connection, decision_id: str) -> Aftermath:
    """Return the effects of a decision at the time it was made, from the audit log."""
    decision = find_decision(connection, decision_id)
    record = _record_of(connection, decision)
    if record is None:
        return Aftermath(decision)
    answered = tuple(record.after.get("requests", ()))
    replaced = tuple(one["id"] for one in record.before.get("decisions", ()))
    started = tuple(sorted(_started(connection, answered)))
    newer = _newer(connection, decision) if replaced else None
    return Aftermath(decision, answered, replaced, started, str(record.after.get("bulk", "")), newer)


def undo(connection: Connection, decision_id: str, *, actor: str, reason: str, now: datetime) -> Undone:
    """Reverse a decision in force. Requests whose action has already resumed stay answered."""
    ledger = Ledger(connection)
    done = find_aftermath(connection, decision_id)
    check_live(done.decision)
    if done.newer is not None:
        raise DecisionConflict(newer_words(done.newer))
    generation = ledger.next_generation()
    (ended,) = end_decisions(connection, decisions.c.id == decision_id, by=actor, now=now, generation=generation)
    restored = _restore(connection, done, generation, now)
    reopened = _reopen(connection, done)
    _give_back(connection, done, restored)
    show_end(connection, [ended], RequestState.REVOKED, by=actor, now=now)
    entry = revocation(
        done.decision,
        actor=actor,
        reason=reason,
        undone=True,
        requests=list(reopened),
        decisions=[summary(one) for one in restored],
    )
    ledger.close([entry], now=now)
    return Undone(ended, reopened, tuple(one for one in done.answered if one not in reopened), tuple(restored))


def _record_of(connection: Connection, decision: Decision) -> AuditRecord | None:
    """Return the audit record of a decision, or None."""
    written = (
        select(audit)
        .where(audit.c.request_id == decision.request_id, audit.c.at == decision.created_at)
        .where(audit.c.actor == decision.created_by, audit.c.action == outcome_of(decision)[1].value)
        .order_by(audit.c.sequence.desc())
    )
    for record in map(to_audit_record, connection.execute(written)):
        if record.after.get("decision", {}).get("id") == decision.id:
            return record
    return None


def newer_words(found: Decision) -> str:
    """Return the reason for not undoing a decision that a newer one follows."""
    return f"the {found.effect} {found.id} by {found.created_by} is newer; revoke it first"


def _newer(connection: Connection, decision: Decision) -> Decision | None:
    """Return a newer decision in force about the same access; a replaced decision is not restored over it."""
    newer = (
        select(decisions)
        .where(is_live, decisions.c.digest == decision.access.digest, decisions.c.id != decision.id)
        .where(decisions.c.generation > decision.generation)
        .limit(1)
    )
    row = connection.execute(newer).one_or_none()
    return None if row is None else to_decision(row)


def _restore(connection: Connection, done: Aftermath, generation: int, now: datetime) -> list[Decision]:
    """Restore the decisions that this decision ended, unless they have expired or their session has ended."""
    if not done.replaced:
        return []
    over = select(ended_sessions.c.session_key)
    put_back = (
        update(decisions)
        .where(decisions.c.id.in_(sorted(done.replaced)))
        .where(decisions.c.ended_at == done.decision.created_at, decisions.c.ended_by == done.decision.created_by)
        .where(or_(decisions.c.expires_at.is_(None), decisions.c.expires_at > now))
        .where(decisions.c.session_key.not_in(over))
        .values(ended_at=None, ended_by="", generation=generation)
        .returning(decisions)
    )
    return sorted(map(to_decision, connection.execute(put_back).all()), key=lambda row: row.id)


def _reopen(connection: Connection, done: Aftermath) -> tuple[str, ...]:
    """Reopen the requests that the decision answered, and delete their resumptions, none of which has started."""
    ids = sorted(set(done.answered) - set(done.started))
    if not ids:
        return ()
    other = requests.alias()
    asked_again = exists().where(
        other.c.state == RequestState.PENDING.value,
        other.c.digest == requests.c.digest,
        other.c.user_id == requests.c.user_id,
        other.c.session_key == requests.c.session_key,
    )
    answered = (
        requests.c.state == outcome_of(done.decision)[0].value,
        requests.c.decided_at == done.decision.created_at,
    )
    reopened = connection.execute(
        update(requests)
        .where(requests.c.id.in_(ids), *answered, ~asked_again)
        .values(_WAITING)
        .returning(requests.c.id)
    ).all()
    found = sorted(row.id for row in reopened)
    connection.execute(delete(resumes).where(resumes.c.request_id.in_(found)))
    over = select(ended_sessions.c.session_key)
    ended = and_(is_pending, requests.c.id.in_(found), requests.c.session_key.in_(over))
    connection.execute(update(requests).where(ended).values(session_ended=1))
    return tuple(found)


def _give_back(connection: Connection, done: Aftermath, restored: Sequence[Decision]) -> None:
    """Set the requests of restored decisions back to their answered state."""
    for one in restored:
        state = outcome_of(one)[0].value
        shown = {"state": state, "decision_id": one.id, "ended_at": None, "ended_by": ""}
        theirs: ColumnElement[bool] = requests.c.decision_id == one.id
        if (one.effect, one.scope) == (done.decision.effect, done.decision.scope):
            moved = and_(requests.c.decision_id == done.decision.id, requests.c.id.not_in(sorted(done.answered)))
            theirs = or_(theirs, moved)
        connection.execute(update(requests).where(theirs).values(shown))


def _started(connection: Connection, request_ids: Collection[str]) -> Sequence[str]:
    """Return the requests whose action has started or finished."""
    untouched: ColumnElement[bool] = and_(resumes.c.state == ResumeState.WAITING.value, resumes.c.attempts == 0)
    query: Any = select(resumes.c.request_id).where(resumes.c.request_id.in_(sorted(request_ids)), ~untouched)
    return [row.request_id for row in connection.execute(query)]
