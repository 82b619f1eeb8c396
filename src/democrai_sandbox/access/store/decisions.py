"""Decisions: created, replaced, ended, undone. They change only together with the generation that nodes read."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, insert, literal_column, or_, select, update

from democrai_sandbox.access import values
from democrai_sandbox.access.audit import access_dict
from democrai_sandbox.access.snapshot import pause_collection
from democrai_sandbox.access.values import AuditAction, Decision, DecisionEffect, DecisionScope, RequestState
from democrai_sandbox.errors import DecisionConflict, DecisionUnknown
from democrai_sandbox.policy import InvalidInputError

from . import tables
from .audit_log import SYSTEM, AuditEntry, Ledger
from .requests import add_resumes, check_identity, find_request, has_ended, remember_end
from .tables import audit, decisions, ended_sessions, is_live, is_pending, meta, requests, resumes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import ColumnElement

    from democrai_sandbox.policy import Subject

_AT_ONCE = 500
_OUTCOMES = MappingProxyType(
    {
        (DecisionEffect.APPROVAL, DecisionScope.SESSION): RequestState.APPROVED_FOR_SESSION,
        (DecisionEffect.APPROVAL, DecisionScope.PERMANENT): RequestState.APPROVED,
        (DecisionEffect.DENIAL, DecisionScope.PERMANENT): RequestState.DENIED,
    }
)
"""States of the answered requests; the audit actions have the same names."""


def decide(connection: Connection, decision: values.NewDecision, *, now: datetime) -> Decision:
    """Store an approval or denial, end the decisions it contradicts or repeats, and answer pending requests.

    Raises ``RequestUnknown``, or ``DecisionConflict`` if the request was decided meanwhile. The approval of a request
    with a resume action creates its resumption in the same transaction.
    """
    state = _checked_outcome(decision)
    ledger = Ledger(connection)
    asked = _pending(connection, decision) if decision.request_id else None
    if has_ended(connection, decision.session_key):
        raise DecisionConflict("the session has ended; approve the request permanently or deny it")
    if decision.expected is not None:
        _check_unchanged(connection, decision.expected)
    generation = ledger.next_generation()
    ended = end_decisions(connection, _replaced_by(decision), by=decision.decided_by, now=now, generation=generation)
    made = _add(connection, decision, generation, now)
    _succeed(connection, ended, made, now=now)
    answered = _answer(connection, decision, asked, made)
    started = add_resumes(connection, answered, made, now=now) if made.effect is DecisionEffect.APPROVAL else []
    before = {"decisions": [summary(row) for row in ended]} if ended else {}
    ids = [row.id for row in answered]
    after: dict[str, Any] = {"decision": summary(made), "reason": decision.reason, "requests": ids}
    after |= ({"resumes": started} if started else {}) | ({"bulk": decision.bulk} if decision.bulk else {})
    action, actor = AuditAction(state.value), decision.decided_by
    ledger.close([AuditEntry(action, actor, decision.access, decision.request_id, before, after)], now=now)
    return made


def revoke(connection: Connection, decision_id: str, *, actor: str, reason: str, now: datetime) -> Decision:
    """End a decision; raises ``DecisionUnknown``, or ``DecisionConflict`` if it has already ended."""
    ledger = Ledger(connection)
    found = find_decision(connection, decision_id)
    check_live(found)
    generation = ledger.next_generation()
    (ended,) = end_decisions(connection, decisions.c.id == decision_id, by=actor, now=now, generation=generation)
    show_end(connection, [ended], RequestState.REVOKED, by=actor, now=now)
    ledger.close([revocation(found, actor=actor, reason=reason)], now=now)
    return ended


def revocation(decision: Decision, *, actor: str, reason: str, **more: Any) -> AuditEntry:
    """Return the audit entry of a decision that a user ended; ``more`` is what followed from that."""
    before, after = {"decision": summary(decision)}, {"reason": reason, **more}
    return AuditEntry(AuditAction.REVOKED, actor, decision.access, decision.request_id, before, after)


def end_session(connection: Connection, session_key: str, *, actor: str, now: datetime) -> int:
    """End the approvals of a session, mark its pending requests, and return the number of ended approvals.

    The end of the session is stored: its later requests are marked too and cannot be approved for the session.
    """
    if not session_key:
        raise InvalidInputError.of("the session key is empty", pointer="/session_key")
    check_identity("session_key", session_key)
    ledger = Ledger(connection)
    first = remember_end(connection, session_key, now=now)
    live = connection.execute(select(decisions.c.id).where(is_live, decisions.c.session_key == session_key)).first()
    ended: Sequence[Decision] = ()
    if live is not None:
        of_session = decisions.c.session_key == session_key
        ended = end_decisions(connection, of_session, by=actor, now=now, generation=ledger.next_generation())
        show_end(connection, ended, RequestState.EXPIRED, by=actor, now=now)
    unmarked = (requests.c.session_key == session_key, is_pending, requests.c.session_ended == 0)
    mark = update(requests).where(*unmarked).values(session_ended=1).returning(requests.c.id)
    marked = sorted(connection.execute(mark).scalars())
    if first or ended or marked:
        before = {"decisions": [summary(row) for row in ended]}
        after = {"session_key": session_key, "requests": marked}
        ledger.close([AuditEntry(AuditAction.SESSION_ENDED, actor, before=before, after=after)], now=now)
    return len(ended)


def end_expired(connection: Connection, *, now: datetime) -> int:
    """End expired decisions and return their number."""
    over = decisions.c.expires_at <= now
    if connection.execute(select(decisions.c.id).where(is_live, over).limit(1)).first() is None:
        return 0
    ledger = Ledger(connection)
    ended = end_decisions(connection, over, by=SYSTEM, now=now, generation=ledger.next_generation())
    show_end(connection, ended, RequestState.EXPIRED, by=SYSTEM, now=now)
    ledger.close(
        (
            AuditEntry(AuditAction.EXPIRED, SYSTEM, row.access, row.request_id, before={"decision": summary(row)})
            for row in ended
        ),
        now=now,
    )
    return len(ended)


def note_use(connection: Connection, uses: Mapping[str, datetime]) -> None:
    """Store when decisions, by id, were last used; writes no audit record and does not change the generation."""
    if not uses:
        return
    noted = (
        update(decisions)
        .where(decisions.c.id == bindparam("its_id"))
        .where(or_(decisions.c.last_used.is_(None), decisions.c.last_used < bindparam("used")))
        .values(last_used=bindparam("used"))
    )
    # Ordered by id, so that two nodes cannot deadlock.
    connection.execute(noted, [{"its_id": key, "used": uses[key]} for key in sorted(uses)])


def versions(connection: Connection, accesses: Iterable[values.AccessTuple]) -> dict[str, int]:
    """Return the generation of the last change to the decisions about each access, by digest; 0 if none exists."""
    found: dict[str, int] = {}
    by_subject: dict[Subject, set[str]] = {}
    for access in accesses:
        by_subject.setdefault(access.subject, set()).add(access.digest)
    for subject, digests in by_subject.items():
        latest = (
            select(decisions.c.digest, func.max(decisions.c.generation))
            # By subject, because the digest is indexed only for decisions in force.
            .where(decisions.c.subject_kind == subject.kind.value, decisions.c.subject_name == subject.name)
            .where(decisions.c.digest.in_(sorted(digests)))
            .group_by(decisions.c.digest)
        )
        found |= dict.fromkeys(digests, 0) | {row[0]: int(row[1]) for row in connection.execute(latest)}
    return found


def _check_unchanged(connection: Connection, expected: values.Expected) -> None:
    """Refuse a decision that is based on an outdated state."""
    present = max(versions(connection, expected.about).values(), default=0)
    if present == expected.version:
        return
    digests = sorted({access.digest for access in expected.about})
    live = select(decisions).where(is_live, decisions.c.digest.in_(digests)).order_by(decisions.c.generation.desc())
    row = connection.execute(live.limit(1)).one_or_none()
    if row is None:
        raise DecisionConflict("the decision that was in force has ended since you loaded it")
    newest = tables.to_decision(row)
    raise DecisionConflict(
        f"the {newest.effect} of {newest.access.target} by {newest.created_by} at {_shown(newest.created_at)} "
        f"is newer (decision {newest.id})"
    )


def generation(connection: Connection) -> int:
    """Return the number of the last change to the decisions; 0 before the first change."""
    return int(connection.execute(_GENERATION).scalar_one())


def changes(connection: Connection, since: int) -> values.Changes:
    """Return the decisions that changed after a generation, including ended ones; since 0 only those in force."""
    now = generation(connection)
    found = connection.execute(_CHANGED, {"since": since}) if since else connection.execute(_IN_FORCE)
    with pause_collection():
        rows = map(values.DecisionRow._make, found.cursor.fetchall())
        plain = [
            row
            if tables.MARK not in row[5] and tables.MARK not in row[8] and tables.MARK not in row[11]
            else _unmarked(row)
            for row in rows
        ]
    return values.Changes(now, tuple(plain))


def _unmarked(row: values.DecisionRow) -> values.DecisionRow:
    target, session_key, reason = map(tables.from_stored, (row.target, row.session_key, row.reason))
    return row._replace(target=target, session_key=session_key, reason=reason)


# Raw columns without type conversion, because a hundred thousand rows are loaded together.
_PLAIN: tuple[ColumnElement[Any], ...] = tuple(literal_column(name) for name in values.DecisionRow._fields[:10])
_REASON: ColumnElement[Any] = literal_column("CASE effect WHEN 'denial' THEN reason ELSE '' END")
# The condition on the generation makes SQLite use an index in row order; the index by digest takes twice as long.
_IN_FORCE = (
    select(*_PLAIN, literal_column("FALSE"), _REASON).select_from(decisions).where(is_live, decisions.c.generation > 0)
)
_CHANGED = (
    select(*_PLAIN, literal_column("ended_at IS NOT NULL"), _REASON)
    .select_from(decisions)
    .where(decisions.c.generation > bindparam("since"))
)
_GENERATION = select(meta.c.generation)


def find_decision(connection: Connection, decision_id: str) -> Decision:
    """Return one decision; raises ``DecisionUnknown``."""
    row = connection.execute(select(decisions).where(decisions.c.id == decision_id)).one_or_none()
    if row is None:
        raise DecisionUnknown(f"decision {decision_id} does not exist")
    return tables.to_decision(row)


def check_live(decision: Decision) -> None:
    """Raise ``DecisionConflict`` if a decision has already ended."""
    if decision.ended_at is not None:
        message = f"decision {decision.id} was ended by {decision.ended_by} at {_shown(decision.ended_at)}"
        raise DecisionConflict(message)


def outcome_of(decision: Decision) -> RequestState:
    """Return the state of the requests that a decision answered."""
    return _OUTCOMES[decision.effect, decision.scope]


def _checked_outcome(decision: values.NewDecision) -> RequestState:
    outcome = _OUTCOMES.get((decision.effect, decision.scope))
    if outcome is None:
        raise InvalidInputError.of("a denial is always permanent", pointer="/scope")
    if (decision.scope is DecisionScope.SESSION) != bool(decision.session_key):
        message = "a session decision needs a session key, and a permanent decision must not have one"
        raise InvalidInputError.of(message, pointer="/session_key")
    check_identity("session_key", decision.session_key)
    return outcome


def _pending(connection: Connection, decision: values.NewDecision) -> values.StoredRequest:
    """Return the decided request, or raise ``DecisionConflict`` if it is not pending anymore."""
    found = find_request(connection, decision.request_id)
    if found.state is RequestState.AGED_OUT:
        raise DecisionConflict(f"request {found.id} was dropped because it was not decided in time")
    if found.state is not RequestState.PENDING:
        when = "" if found.changed_at is None else f" at {_shown(found.changed_at)}"
        what = found.state.value.replace("_", " ")
        raise DecisionConflict(f"request {found.id} was {what} by {found.changed_by}{when}")
    if decision.scope is DecisionScope.SESSION and found.origin.session_key != decision.session_key:
        raise InvalidInputError.of("the session key is not that of the request", pointer="/session_key")
    return found


def _replaced_by(decision: values.NewDecision) -> ColumnElement[bool]:
    """Return the condition for decisions that this one contradicts or repeats."""
    same_tuple = decisions.c.digest == decision.access.digest
    if decision.effect is DecisionEffect.DENIAL:
        return same_tuple
    repeated = and_(decisions.c.scope == decision.scope.value, decisions.c.session_key == decision.session_key)
    return and_(same_tuple, or_(decisions.c.effect == DecisionEffect.DENIAL.value, repeated))


def end_decisions(
    connection: Connection, which: ColumnElement[bool], *, by: str, now: datetime, generation: int
) -> list[Decision]:
    """End the decisions in force that match a condition; return them."""
    ended = update(decisions).where(is_live, which).values(ended_at=now, ended_by=by, generation=generation)
    rows = connection.execute(ended.returning(decisions)).all()
    return sorted(map(tables.to_decision, rows), key=lambda row: row.id)


def _add(connection: Connection, decision: values.NewDecision, generation: int, now: datetime) -> Decision:
    added = insert(decisions).values(
        id=values.new_id(),
        **tables.tuple_columns(decision.access),
        effect=decision.effect.value,
        scope=decision.scope.value,
        session_key=decision.session_key,
        created_at=now,
        created_by=decision.decided_by,
        reason=decision.reason,
        request_id=decision.request_id or None,
        generation=generation,
        expires_at=decision.expires_at,
        ended_by="",
    )
    return tables.to_decision(connection.execute(added.returning(decisions)).one())


def _answer(
    connection: Connection, decision: values.NewDecision, asked: values.StoredRequest | None, made: Decision
) -> list[values.StoredRequest]:
    """Answer all pending requests that the decision covers."""
    digests = {decision.access.digest} | ({asked.access.digest} if asked else set())
    which = or_(
        requests.c.digest.in_(sorted(digests)),
        requests.c.id.in_(sorted({*decision.also_answers, decision.request_id})),
    )
    if decision.scope is DecisionScope.SESSION:
        which = and_(which, requests.c.session_key == decision.session_key)
    shown: dict[str, Any] = {"state": outcome_of(made).value, "reason": made.reason, "decision_id": made.id}
    shown |= {"decided_at": made.created_at, "decided_by": made.created_by}
    answered = update(requests).where(is_pending, which).values(shown)
    rows = connection.execute(answered.returning(*tables.REQUEST_COLUMNS)).all()
    return sorted(map(tables.to_request, rows), key=lambda row: row.id)


def _succeed(connection: Connection, ended: Sequence[Decision], made: Decision, *, now: datetime) -> None:
    """Update the requests of replaced decisions: repeated decisions pass them on, contrary ones mark them replaced."""
    repeated = [one for one in ended if one.effect is made.effect and one.scope is made.scope]
    for batch in _batches(repeated):
        follow = update(requests).where(requests.c.decision_id.in_(batch)).values(decision_id=made.id)
        connection.execute(follow)
    contrary = [one for one in ended if one not in repeated]
    show_end(connection, contrary, RequestState.REPLACED, by=made.created_by, now=now)


def show_end(connection: Connection, ended: Sequence[Decision], state: RequestState, *, by: str, now: datetime) -> None:
    """Set the state of the requests that these ended decisions had answered."""
    shown = {"state": state.value, "ended_at": now, "ended_by": by}
    for batch in _batches(ended):
        connection.execute(update(requests).where(requests.c.decision_id.in_(batch)).values(shown))


def _batches(ended: Sequence[Decision]) -> Iterator[list[str]]:
    """Yield the ids in batches that fit a statement."""
    ids = [one.id for one in ended]
    for begin in range(0, len(ids), _AT_ONCE):
        yield ids[begin : begin + _AT_ONCE]


def summary(decision: Decision) -> dict[str, Any]:
    """Return the audit form of a decision."""
    return {
        "id": decision.id,
        "effect": decision.effect.value,
        "scope": decision.scope.value,
        "session_key": decision.session_key,
        "created_by": decision.created_by,
        "created_at": _shown(decision.created_at),
        "expires_at": None if decision.expires_at is None else _shown(decision.expires_at),
        "access": access_dict(decision.access),
    }


def _shown(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


_WAITING: Mapping[str, Any] = MappingProxyType(
    {
        "state": RequestState.PENDING.value,
        **dict.fromkeys(("decided_at", "decision_id", "ended_at")),
        **dict.fromkeys(("decided_by", "ended_by", "reason"), ""),
    }
)
"""Columns of an unanswered request."""


def find_aftermath(connection: Connection, decision_id: str) -> values.Aftermath:
    """Return the effects of a decision at the time it was made, from the audit log; raises ``DecisionUnknown``."""
    decision = find_decision(connection, decision_id)
    record = _record_of(connection, decision)
    if record is None:
        return values.Aftermath(decision)
    answered = tuple(record.after.get("requests", ()))
    replaced = tuple(one["id"] for one in record.before.get("decisions", ()))
    started = tuple(sorted(_started(connection, answered)))
    newer = _newer(connection, decision) if replaced else None
    return values.Aftermath(decision, answered, replaced, started, str(record.after.get("bulk", "")), newer)


def undo(connection: Connection, decision_id: str, *, actor: str, reason: str, now: datetime) -> values.Undone:
    """End a decision, reopen the requests it answered, and restore the decisions it replaced.

    Requests whose action has already resumed stay answered. Raises ``DecisionUnknown``, or ``DecisionConflict`` if the
    decision has ended or a newer decision prevents it.
    """
    ledger = Ledger(connection)
    done = find_aftermath(connection, decision_id)
    check_live(done.decision)
    if done.newer is not None:
        raise DecisionConflict(newer_decision_text(done.newer))
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
    return values.Undone(ended, reopened, tuple(one for one in done.answered if one not in reopened), tuple(restored))


def _record_of(connection: Connection, decision: Decision) -> values.AuditRecord | None:
    """Return the audit record of a decision, or None."""
    written = (
        select(audit)
        .where(audit.c.request_id == decision.request_id, audit.c.at == decision.created_at)
        .where(audit.c.actor == decision.created_by, audit.c.action == outcome_of(decision).value)
        .order_by(audit.c.sequence.desc())
    )
    records = map(tables.to_audit_record, connection.execute(written))
    return next((record for record in records if record.after.get("decision", {}).get("id") == decision.id), None)


def newer_decision_text(found: Decision) -> str:
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
    return None if row is None else tables.to_decision(row)


def _restore(connection: Connection, done: values.Aftermath, generation: int, now: datetime) -> list[Decision]:
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
    return sorted(map(tables.to_decision, connection.execute(put_back).all()), key=lambda row: row.id)


def _reopen(connection: Connection, done: values.Aftermath) -> tuple[str, ...]:
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
    made = done.decision
    answered = (requests.c.state == outcome_of(made).value, requests.c.decided_at == made.created_at)
    reopened = update(requests).where(requests.c.id.in_(ids), *answered, ~asked_again).values(_WAITING)
    found = sorted(connection.execute(reopened.returning(requests.c.id)).scalars())
    connection.execute(delete(resumes).where(resumes.c.request_id.in_(found)))
    over = select(ended_sessions.c.session_key)
    ended = and_(is_pending, requests.c.id.in_(found), requests.c.session_key.in_(over))
    connection.execute(update(requests).where(ended).values(session_ended=1))
    return tuple(found)


def _give_back(connection: Connection, done: values.Aftermath, restored: Sequence[Decision]) -> None:
    """Set the requests of restored decisions back to their answered state."""
    for one in restored:
        state = outcome_of(one).value
        shown = {"state": state, "decision_id": one.id, "ended_at": None, "ended_by": ""}
        theirs: ColumnElement[bool] = requests.c.decision_id == one.id
        if (one.effect, one.scope) == (done.decision.effect, done.decision.scope):
            moved = and_(requests.c.decision_id == done.decision.id, requests.c.id.not_in(sorted(done.answered)))
            theirs = or_(theirs, moved)
        connection.execute(update(requests).where(theirs).values(shown))


def _started(connection: Connection, request_ids: Collection[str]) -> Sequence[str]:
    """Return the requests whose action has started or finished."""
    untouched: ColumnElement[bool] = and_(
        resumes.c.state == values.ResumptionState.WAITING.value, resumes.c.attempts == 0
    )
    query: Any = select(resumes.c.request_id).where(resumes.c.request_id.in_(sorted(request_ids)), ~untouched)
    return [row.request_id for row in connection.execute(query)]
