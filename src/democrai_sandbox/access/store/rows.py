"""Conversion between rows and values."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access import values
from democrai_sandbox.access.audit import access_dict
from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind

from . import tables

if TYPE_CHECKING:
    from sqlalchemy import Row

REQUEST_COLUMNS = (
    *(column for column in tables.requests.c if column.name != "resume_context"),
    tables.requests.c.resume_context.is_not(None).label("has_context"),
)
"""All columns of a request except the encrypted context, which is fetched only for decryption."""


def tuple_columns(access: values.AccessTuple) -> dict[str, str]:
    """Return the access columns with digest and folded target, for lookups."""
    return {**access_dict(access), "digest": access.digest, "target_folded": access.target.casefold()}


def to_access(row: Row[Any]) -> values.AccessTuple:
    """Return the access of a row."""
    subject = Subject(SubjectKind(row.subject_kind), row.subject_name)
    return values.AccessTuple(subject, ResourceType(row.resource_type), Operation(row.operation), row.target)


def to_origin(row: Row[Any]) -> values.Requester:
    """Return the origin of a request."""
    return values.Requester(row.user_id, row.organization_id, row.session_key, row.task_id)


def to_request(row: Row[Any]) -> values.StoredRequest:
    """Return a request from the columns in ``REQUEST_COLUMNS``."""
    return values.StoredRequest(
        id=row.id,
        access=to_access(row),
        raw_target=row.raw_target,
        chain=tuple(json.loads(row.chain)),
        origin=to_origin(row),
        resume_action=row.resume_action,
        has_context=bool(row.has_context),
        state=values.RequestState(row.state),
        first_seen=row.first_seen,
        last_seen=row.last_seen,
        count=row._mapping["count"],  # noqa: SLF001 - the documented way where a column is named like a method
        session_ended=bool(row.session_ended),
        decided_at=row.decided_at,
        decided_by=row.decided_by,
        reason=row.reason,
        decision_id=row.decision_id or "",
        ended_at=row.ended_at,
        ended_by=row.ended_by,
    )


def to_decision(row: Row[Any]) -> values.Decision:
    """Return a decision."""
    return values.Decision(
        id=row.id,
        access=to_access(row),
        effect=values.DecisionEffect(row.effect),
        scope=values.DecisionScope(row.scope),
        session_key=row.session_key,
        created_at=row.created_at,
        created_by=row.created_by,
        reason=row.reason,
        request_id=row.request_id or "",
        generation=row.generation,
        expires_at=row.expires_at,
        ended_at=row.ended_at,
        ended_by=row.ended_by,
        last_used=row.last_used,
    )


def to_resume(row: Row[Any]) -> values.Resumption:
    """Return a resumption from its columns and those of its request."""
    return values.Resumption(
        id=row.id,
        request_id=row.request_id,
        action=row.resume_action,
        origin=to_origin(row),
        subject=Subject(SubjectKind(row.subject_kind), row.subject_name),
        state=values.ResumptionState(row.state),
        attempts=row.attempts,
        created_at=row.created_at,
        next_attempt=row.next_attempt,
        leased_by=row.leased_by,
        last_error=row.last_error,
        finished_at=row.finished_at,
    )


def to_audit_record(row: Row[Any]) -> values.AuditRecord:
    """Return an audit record; a tampered row that cannot be decoded becomes a record with a wrong hash."""
    try:
        action = values.AuditAction(row.action)
        access = None if row.subject_kind is None else to_access(row)
        before, after = _json_object(row.before), _json_object(row.after)
    except ValueError:
        action, access, before, after = values.AuditAction.CHECK_FAILED, None, {}, {"unreadable": repr(tuple(row))}
    return values.AuditRecord(
        sequence=row.sequence,
        at=row.at,
        action=action,
        actor=row.actor,
        access=access,
        request_id=row.request_id,
        before=before,
        after=after,
        previous_hash=row.previous_hash,
        hash=row.hash,
    )


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - unreadable like any other text
    return value
