"""Requests (registered, counted, dropped) and their resumptions (created, claimed under a lease, finished)."""

from __future__ import annotations

import json
from dataclasses import asdict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, and_, bindparam, case, insert, literal, literal_column, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from democrai_sandbox.access import values
from democrai_sandbox.access.audit import access_dict
from democrai_sandbox.access.snapshot import covers
from democrai_sandbox.access.values import AuditAction, Registered, RequestState, ResumptionState
from democrai_sandbox.errors import RequestUnknown
from democrai_sandbox.policy import InvalidInputError

from . import tables
from .audit_log import SYSTEM, AuditEntry, Ledger
from .queries import rank_new, resume_query
from .tables import decisions, ended_sessions, is_live, is_pending, requests, resumes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from sqlalchemy import Row, Select

    from .database import DatabaseStore

LONGEST_IDENTITY = 1000
"""Maximum size in bytes of a user id or session key, because PostgreSQL limits index entries."""

# Built once, because every request with a session uses it.
_ENDED = select(ended_sessions.c.ended_at).where(
    ended_sessions.c.session_key == bindparam("its_session", type_=tables.AnyText())
)


def check_identity(name: str, value: str) -> None:
    """Reject a user id or session key that is too long for an index."""
    if len(value.encode("utf-8", "surrogatepass")) > LONGEST_IDENTITY:
        raise InvalidInputError.of(f"expected at most {LONGEST_IDENTITY} bytes", pointer=f"/{name}")


def has_ended(connection: Connection, session_key: str) -> bool:
    """Return whether a session has ended. Exact while holding the ledger, under which sessions end."""
    return bool(session_key) and connection.execute(_ENDED, {"its_session": session_key}).first() is not None


def remember_end(connection: Connection, session_key: str, *, now: datetime) -> bool:
    """Store under the ledger that a session has ended; return False if it had ended before."""
    if has_ended(connection, session_key):
        return False
    connection.execute(insert(ended_sessions).values(session_key=session_key, ended_at=now))
    return True


_AT_ONCE = 100
_LONGEST_RAW = 2000
"""Characters of the original target that the audit log keeps; limited because audit records are never removed."""


class NotRegistered(Exception):  # noqa: N818 - it says what happened
    """The access was decided before this transaction got the ledger, or the limit of pending requests is reached."""

    def __init__(self, *, full: bool) -> None:
        self.full = full


def register(connection: Connection, request: values.NewRequest, *, now: datetime, most_pending: int = 0) -> Registered:
    """Add a request, or count it if it is already pending. Raises ``NotRegistered``, which rolls back the row."""
    for name in ("user_id", "session_key"):
        check_identity(name, getattr(request.origin, name))
    request_id = request.id or values.new_id()
    if connection.execute(_EXISTS, {"its_id": request_id}).first() is not None:
        # Repeated registration after a commit whose reply was lost.
        return Registered(request_id, created=False)
    row = connection.execute(_UPSERT[connection.dialect.name], _columns(request, request_id, now)).one()
    if row.id != request_id:
        return Registered(row.id, created=False)
    # Take the ledger only now, so that a repeated request waits for no lock. Holders of the ledger do not see the new
    # row.
    ledger = Ledger(connection)
    answered = {"its_digest": request.access.digest, "its_session": request.origin.session_key, "its_time": now}
    if connection.execute(_DECIDED, answered).first() is not None:
        raise NotRegistered(full=False)
    if most_pending and _is_waiting_for_more(connection, request, most_pending):
        raise NotRegistered(full=True)
    if request.seal_again is not None and (context := request.seal_again()) != request.resume_context:
        connection.execute(_SEAL, {"its_id": request_id, "new": context})
    if has_ended(connection, request.origin.session_key):
        connection.execute(_MARK_ENDED, {"its_id": request_id})
    rank_new(connection, request_id, request.access)
    ledger.close([_requested(request, request_id)], now=now)
    return Registered(request_id, created=True)


def _requested(request: values.NewRequest, request_id: str) -> AuditEntry:
    after: dict[str, Any] = {"chain": list(request.chain)}
    if request.raw_target != request.access.target:
        after["raw_target"] = request.raw_target[:_LONGEST_RAW]
    after |= _origin_shown(request.origin)
    after |= {"resume_action": request.resume_action} if request.resume_action else {}
    actor = f"subject:{request.access.subject}"
    return AuditEntry(AuditAction.REQUESTED, actor, request.access, request_id, after=after)


def _is_waiting_for_more(connection: Connection, request: values.NewRequest, most: int) -> bool:
    """Return whether more than ``most`` requests of the subject and user are pending, including this one."""
    subject = request.access.subject
    theirs = (
        select(requests.c.id)
        .where(is_pending, requests.c.subject_kind == subject.kind.value, requests.c.subject_name == subject.name)
        .where(requests.c.user_id == request.origin.user_id)
        .offset(most)
        .limit(1)
    )
    return connection.execute(theirs).first() is not None


def _origin_shown(origin: values.Requester) -> dict[str, str]:
    return {name: value for name, value in asdict(origin).items() if value}


def count_again(connection: Connection, request_id: str, times: int, *, now: datetime) -> bool:
    """Add to the count of a pending request; return False if it is not pending anymore."""
    if times < 1:
        raise InvalidInputError.of(f"expected an integer of at least 1, got {times}", pointer="/times")
    moment = literal(now, tables.Moment)  # never moves back, because the clocks of nodes differ a little
    counted = (
        update(requests)
        .where(requests.c.id == request_id, is_pending)
        .values(
            count=requests.c["count"] + times,
            last_seen=case((requests.c.last_seen < now, moment), else_=requests.c.last_seen),
        )
    )
    return connection.execute(counted).rowcount == 1


def attach_resume(connection: Connection, request: values.NewRequest, *, now: datetime) -> bool:
    """Attach a resume action to a pending request of the same requester that has none yet.

    Returns False if that request already has an action, is decided, or has another user, organization or session. The
    organization must match as well: it is not part of a request's identity, but the action resumes in it. The task
    becomes that of the caller with the action.
    """
    origin = request.origin
    same = [requests.c[name] == getattr(origin, name) for name in ("user_id", "organization_id", "session_key")]
    bare = and_(requests.c.id == request.id, is_pending, requests.c.resume_action == "", *same)
    if connection.execute(select(requests.c.id).where(bare)).first() is None:
        return False
    ledger = Ledger(connection)
    context = request.resume_context if request.seal_again is None else request.seal_again()
    given = {"resume_action": request.resume_action, "resume_context": context, "task_id": origin.task_id}
    row = connection.execute(
        update(requests).where(bare).values(given).returning(*tables.REQUEST_COLUMNS)
    ).one_or_none()
    if row is None:
        return False
    access = tables.to_access(row)
    after = {"resume_action": request.resume_action, **_origin_shown(origin)}
    entry = AuditEntry(AuditAction.RESUME_ATTACHED, f"subject:{access.subject}", access, request.id, after=after)
    ledger.close([entry], now=now)
    return True


def age_out(connection: Connection, *, before: datetime, now: datetime) -> int:
    """Drop pending requests that were last seen before a time and return their number. No decision is made."""
    old = is_pending & (requests.c.last_seen < before)
    if connection.execute(select(requests.c.id).where(old).limit(1)).first() is None:
        return 0
    ledger = Ledger(connection)
    given_up = update(requests).where(old).values(state=RequestState.AGED_OUT.value).returning(*tables.REQUEST_COLUMNS)
    rows = sorted(connection.execute(given_up).all(), key=lambda row: str(row.id))
    entries = []
    for row in rows:
        waiting = {"state": RequestState.PENDING.value}
        after = {"state": RequestState.AGED_OUT.value, "last_seen": row.last_seen.isoformat()}
        entries.append(AuditEntry(AuditAction.AGED_OUT, SYSTEM, tables.to_access(row), row.id, waiting, after))
    ledger.close(entries, now=now)
    return len(rows)


def find_request(connection: Connection, request_id: str) -> values.StoredRequest:
    """Return one request; raises ``RequestUnknown``. Its state changes only under the ledger."""
    row = connection.execute(select(*tables.REQUEST_COLUMNS).where(requests.c.id == request_id)).one_or_none()
    if row is None:
        raise RequestUnknown(f"request {request_id} does not exist")
    return tables.to_request(row)


def resume_context(connection: Connection, request_id: str) -> bytes | None:
    """Return the encrypted context of a request."""
    query = select(requests.c.resume_context).where(requests.c.id == request_id)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise RequestUnknown(f"request {request_id} does not exist")
    return None if row.resume_context is None else bytes(row.resume_context)


def replace_contexts(store: DatabaseStore, reseal: Callable[[values.StoredRequest, bytes], bytes | None]) -> int:
    """Replace the encrypted contexts for which ``reseal`` returns a new value; return their number.

    For key rotation. It can be interrupted and repeated.
    """
    replaced, last = 0, ""
    while True:
        query = (
            select(*tables.REQUEST_COLUMNS, requests.c.resume_context)
            .where(requests.c.resume_context.is_not(None), requests.c.id > last)
            .order_by(requests.c.id)
            .limit(_AT_ONCE)
        )
        rows = store.database.ask(lambda connection, query=query: connection.execute(query).all())  # type: ignore[misc]
        if not rows:
            return replaced
        last = rows[-1].id
        changed = []
        for row in rows:
            old = bytes(row.resume_context)
            new = reseal(tables.to_request(row), old)
            if new is not None and new != old:
                changed.append({"its_id": row.id, "old": old, "new": new})
        if changed:
            store.database.act(lambda connection, changed=changed: connection.execute(_EXCHANGE, changed))  # type: ignore[misc]
        replaced += len(changed)


def settle(connection: Connection) -> None:
    """Wait until contexts sealed with earlier keys are stored, so that ``replace_contexts`` sees them.

    Contexts are sealed under the ledger: its earlier holders have stored theirs, and later holders seal with the key
    that encrypts then.
    """
    Ledger(connection)


_EXCHANGE = (
    update(requests)
    .where(requests.c.id == bindparam("its_id"), requests.c.resume_context == bindparam("old"))
    .values(resume_context=bindparam("new"))
)


def _upsert(dialect: Any) -> Any:
    """Return the statement that adds or counts a request; the unique index decides which."""
    added = dialect.insert(requests)
    later = case(
        (requests.c.last_seen < added.excluded.last_seen, added.excluded.last_seen), else_=requests.c.last_seen
    )
    return added.on_conflict_do_update(
        index_elements=["digest", "user_id", "session_key"],
        index_where=is_pending,
        set_={"count": requests.c["count"] + 1, "last_seen": later},
    ).returning(requests.c.id)


# Built once, because building such a statement takes longer than running it.
_UPSERT = MappingProxyType({"sqlite": _upsert(sqlite), "postgresql": _upsert(postgresql)})
_EXISTS = select(requests.c.id).where(requests.c.id == bindparam("its_id"))
_MARK_ENDED = update(requests).where(requests.c.id == bindparam("its_id")).values(session_ended=1)
_SEAL = update(requests).where(requests.c.id == bindparam("its_id")).values(resume_context=bindparam("new"))
_DECIDED = (
    select(decisions.c.id)
    .where(is_live, decisions.c.digest == bindparam("its_digest"))
    # A permanent decision has no session key, and the key of a session decision is never empty.
    .where(decisions.c.session_key.in_([literal_column("''"), bindparam("its_session", type_=tables.AnyText())]))
    .where(decisions.c.expires_at.is_(None) | (decisions.c.expires_at > bindparam("its_time")))
    .limit(1)
)


def _columns(request: values.NewRequest, request_id: str, now: datetime) -> dict[str, Any]:
    return {
        "id": request_id,
        **tables.tuple_columns(request.access),
        **asdict(request.origin),
        "raw_target": request.raw_target,
        "chain": json.dumps(request.chain),
        "resume_action": request.resume_action,
        "resume_context": request.resume_context,
        "state": RequestState.PENDING.value,
        "first_seen": now,
        "last_seen": now,
        "count": 1,
        "session_ended": 0,
        "decided_by": "",
        "reason": "",
    }


_APPROVAL_ENDED = "the approval has ended"


def add_resumes(
    connection: Connection, answered: Sequence[values.StoredRequest], approval: values.Decision, *, now: datetime
) -> list[dict[str, str]]:
    """Create the resumptions of approved requests; return their audit form."""
    going_on = [request for request in answered if request.resume_action]
    rows = [
        {
            "id": values.new_id(),
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


def claim_resume(
    connection: Connection, *, node: str, lease_until: datetime, now: datetime
) -> values.Resumption | None:
    """Claim the first due resumption; return None if none is due, or if it failed because its approval has ended.

    Decisions change under the ledger too, so a claimed resumption is approved at that moment.
    """
    ledger = Ledger(connection)
    resume_id = connection.execute(_due(now)).scalar_one_or_none()
    if resume_id is None:
        return None
    its_row = resume_query().where(resumes.c.id == resume_id)
    changed = update(resumes).where(resumes.c.id == resume_id)
    due = connection.execute(its_row).one()
    access = find_request(connection, due.request_id).access
    if not _is_approved(connection, due, access, now):
        failed = ResumptionState.FAILED
        connection.execute(changed.values(_left(failed, _APPROVAL_ENDED) | {"finished_at": now}))
        ledger.close([_audit_entry(tables.to_resume(due), access, node, failed, _APPROVAL_ENDED)], now=now)
        return None
    lease = {"leased_by": node, "lease_until": lease_until}
    connection.execute(changed.values(state=ResumptionState.RUNNING.value, attempts=resumes.c.attempts + 1, **lease))
    return tables.to_resume(connection.execute(its_row).one())


def finish_resume(
    connection: Connection,
    resume: values.Resumption,
    *,
    node: str,
    error: str,
    retry_at: datetime | None,
    now: datetime,
) -> bool:
    """Store the result of an attempt: no error means success, an error without ``retry_at`` means final failure.

    After a success the context is removed. Returns False and writes nothing if another node holds the lease or the
    resumption is finished.
    The attempt number is compared too, because a node may have lost its lease and claimed it again.
    """
    ledger = Ledger(connection)
    state = ResumptionState.SUCCEEDED
    if error:
        state = ResumptionState.FAILED if retry_at is None else ResumptionState.WAITING
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


def _is_approved(connection: Connection, resume: Row[Any], access: values.AccessTuple, now: datetime) -> bool:
    """Return whether a resumption is still approved, by its original decision or by a later one."""
    in_force = and_(is_live, or_(decisions.c.expires_at.is_(None), decisions.c.expires_at > now))
    began = select(decisions.c.digest).where(decisions.c.id == resume.decision_id).scalar_subquery()
    approved = (
        select(decisions.c.id)
        .where(in_force, decisions.c.effect == values.DecisionEffect.APPROVAL.value)
        .where(or_(decisions.c.digest == access.digest, decisions.c.digest == began))
        .where(decisions.c.session_key.in_(["", resume.session_key]))
        .limit(1)
    )
    if connection.execute(approved).first() is None:
        return False
    same_place = [decisions.c[name] == value for name, value in access_dict(access).items() if name != "target"]
    denied = select(decisions).where(in_force, tables.is_denial, *same_place)
    return not any(covers(tables.to_access(row), access) for row in connection.execute(denied))


def _left(state: ResumptionState, error: str) -> dict[str, Any]:
    """Return the columns of a resumption without a lease."""
    return {"state": state.value, "leased_by": "", "lease_until": None, "last_error": error}


def _audit_entry(
    resume: values.Resumption, access: values.AccessTuple, node: str, state: ResumptionState, error: str
) -> AuditEntry:
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
