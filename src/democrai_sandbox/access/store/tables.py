"""Tables as this version uses them, with their column types, and the values of their rows."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from democrai_sandbox.access import values
from democrai_sandbox.access.audit import access_dict
from democrai_sandbox.access.verdicts import NOT_ASSESSED
from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

MARK = "\x10"
"""Prefix of the hexadecimal code of a character that cannot be stored directly. Occurs only in stored texts."""

_UNSTORABLE = re.compile("[\0\x10\ud800-\udfff]")
_MARKED = re.compile("\x10([0-9a-f]{4})")


def to_stored(text: str) -> str:
    """Return a text that both databases can store.

    File names can contain bytes that are not UTF-8, which Python represents as lone surrogates, and PostgreSQL rejects
    NUL. Such characters are stored as a rare control character and four hexadecimal digits.
    """
    return _UNSTORABLE.sub(lambda found: f"{MARK}{ord(found.group()):04x}", text)


def from_stored(text: str) -> str:
    """Return the original of a stored text."""
    if MARK not in text:
        return text
    return _MARKED.sub(lambda found: chr(int(found.group(1), 16)), text)


def big_integer() -> Any:
    """Return the type of 64-bit counters, with the name that SQLite's strict tables know."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


class _Encoded(sa.TypeDecorator[T]):
    """Type of values that are stored in another form, except None."""

    encode: Callable[[T], Any]
    decode: Callable[[Any], T]

    def process_bind_param(self, value: T | None, dialect: sa.Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        return None if value is None else self.encode(value)

    def process_result_value(self, value: Any, dialect: sa.Dialect) -> T | None:  # noqa: ARG002 - the same
        return None if value is None else self.decode(value)


class AnyText(_Encoded[str]):
    """Text from outside, stored without loss."""

    impl, cache_ok = sa.Text, True
    encode, decode = staticmethod(to_stored), staticmethod(from_stored)


class Moment(_Encoded[datetime]):
    """Aware time, stored as an integer."""

    impl, cache_ok = big_integer(), True
    encode, decode = staticmethod(values.to_micros), staticmethod(values.from_micros)


metadata = sa.MetaData()
"""All tables below. Migrations create them; a test compares both."""


def columns(kind: Any, *names: str, nullable: bool = False) -> Iterator[sa.Column[Any]]:
    """Yield columns of the same type."""
    return (sa.Column(name, kind, nullable=nullable) for name in names)


def one_of(column: str, names: Iterable[str]) -> sa.CheckConstraint:
    """Return the constraint that a column contains only these texts."""
    listed = ", ".join(f"'{name}'" for name in names)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


def _about(*, required: bool = True) -> Iterator[Any]:
    """Yield the access columns of a row."""
    yield from columns(sa.Text, "subject_kind", "subject_name", "resource_type", "operation", nullable=not required)
    yield sa.Column("target", AnyText, nullable=not required)
    yield one_of("subject_kind", SubjectKind)
    yield one_of("resource_type", ResourceType)
    yield one_of("operation", Operation)


def partial_index(name: str, *names: str, where: str, unique: bool = False) -> sa.Index:
    """Return an index of the rows that match a condition."""
    return sa.Index(name, *names, unique=unique, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


meta = sa.Table(
    "access_meta",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    *columns(big_integer(), "generation", "audit_sequence"),
    sa.Column("audit_hash", sa.Text, nullable=False),
    sa.CheckConstraint("id = 1", name="ck_single"),
    sqlite_strict=True,
)

requests = sa.Table(
    "access_requests",
    metadata,
    sa.Column("id", AnyText, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    *_about(),
    *columns(AnyText, "target_folded", "raw_target"),
    sa.Column("chain", sa.Text, nullable=False),
    *columns(AnyText, "user_id", "organization_id", "session_key", "task_id", "resume_action"),
    sa.Column("resume_context", sa.LargeBinary),
    sa.Column("state", sa.Text, nullable=False),
    *columns(Moment, "first_seen", "last_seen"),
    sa.Column("count", big_integer(), nullable=False),
    sa.Column("session_ended", sa.Integer, nullable=False),
    sa.Column("decided_at", Moment),
    *columns(AnyText, "decided_by", "reason"),
    sa.Column("risk", sa.Integer, nullable=False, server_default=sa.text(str(NOT_ASSESSED))),
    sa.Column("decision_id", AnyText),
    sa.Column("ended_at", Moment),
    sa.Column("ended_by", AnyText, nullable=False, server_default=""),
    one_of("state", values.RequestState),
    partial_index(
        "uq_access_requests_pending", "digest", "user_id", "session_key", where="state = 'pending'", unique=True
    ),
    sa.Index("ix_access_requests_seen", "state", "last_seen", "id"),
    partial_index("ix_access_requests_asker", "user_id", "subject_kind", "subject_name", where="state = 'pending'"),
    partial_index("ix_access_requests_session", "session_key", where="state = 'pending' AND session_key <> ''"),
    partial_index("ix_access_requests_risk", "state", "risk", "id", where="state = 'pending'"),
    partial_index("ix_access_requests_group", "state", "digest", "id", where="state = 'pending'"),
    partial_index("ix_access_requests_waiting", "state", "first_seen", where="state = 'pending'"),
    partial_index("ix_access_requests_decided", "decided_at", where="decided_at IS NOT NULL"),
    partial_index("ix_access_requests_decision", "decision_id", where="decision_id IS NOT NULL"),
    sqlite_strict=True,
)

decisions = sa.Table(
    "access_decisions",
    metadata,
    sa.Column("id", AnyText, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    *_about(),
    sa.Column("target_folded", AnyText, nullable=False),
    *columns(sa.Text, "effect", "scope"),
    sa.Column("session_key", AnyText, nullable=False),
    sa.Column("created_at", Moment, nullable=False),
    *columns(AnyText, "created_by", "reason"),
    sa.Column("request_id", AnyText, sa.ForeignKey("access_requests.id")),
    sa.Column("generation", big_integer(), nullable=False),
    *columns(Moment, "expires_at", "ended_at", nullable=True),
    sa.Column("ended_by", AnyText, nullable=False),
    sa.Column("last_used", Moment),
    one_of("effect", values.DecisionEffect),
    one_of("scope", values.DecisionScope),
    sa.CheckConstraint("(scope = 'session') = (session_key <> '')", name="ck_session"),
    sa.CheckConstraint("effect = 'approval' OR scope = 'permanent'", name="ck_denial"),
    partial_index(
        "uq_access_decisions_live", "digest", "effect", "scope", "session_key", where="ended_at IS NULL", unique=True
    ),
    sa.Index("ix_access_decisions_generation", "generation"),
    sa.Index("ix_access_decisions_digest", "digest"),
    partial_index("ix_access_decisions_live", "generation", where="ended_at IS NULL"),
    sa.Index("ix_access_decisions_created", "created_at", "id"),
    sa.Index("ix_access_decisions_subject", "subject_kind", "subject_name", "created_at", "id"),
    partial_index("ix_access_decisions_session", "session_key", where="ended_at IS NULL AND session_key <> ''"),
    partial_index(
        "ix_access_decisions_denials", "subject_kind", "subject_name", where="ended_at IS NULL AND effect = 'denial'"
    ),
    partial_index("ix_access_decisions_expiry", "expires_at", where="ended_at IS NULL AND expires_at IS NOT NULL"),
    sqlite_strict=True,
)

audit = sa.Table(
    "access_audit",
    metadata,
    sa.Column("sequence", big_integer(), primary_key=True, autoincrement=False),
    sa.Column("at", Moment, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("actor", AnyText, nullable=False),
    *_about(required=False),
    sa.Column("request_id", AnyText, nullable=False),
    *columns(sa.Text, "before", "after", "previous_hash", "hash"),
    one_of("action", values.AuditAction),
    sa.Index("ix_access_audit_request", "request_id", "sequence"),
    sqlite_strict=True,
)

resumes = sa.Table(
    "access_resumes",
    metadata,
    sa.Column("id", AnyText, primary_key=True),
    sa.Column("request_id", AnyText, sa.ForeignKey("access_requests.id"), nullable=False, unique=True),
    sa.Column("decision_id", AnyText, sa.ForeignKey("access_decisions.id"), nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),
    *columns(Moment, "created_at", "next_attempt"),
    sa.Column("leased_by", AnyText, nullable=False),
    sa.Column("lease_until", Moment),
    sa.Column("last_error", AnyText, nullable=False),
    sa.Column("finished_at", Moment),
    one_of("state", values.ResumptionState),
    partial_index("ix_access_resumes_due", "next_attempt", where="finished_at IS NULL"),
    sa.Index("ix_access_resumes_created", "created_at", "id"),
    sqlite_strict=True,
)

ended_sessions = sa.Table(
    "access_ended_sessions",
    metadata,
    sa.Column("session_key", AnyText, primary_key=True),
    sa.Column("ended_at", Moment, nullable=False),
    sqlite_strict=True,
)

# Literal instead of a bound value, so that PostgreSQL uses the partial indexes.
is_pending = requests.c.state == sa.literal_column(f"'{values.RequestState.PENDING.value}'")
is_live = decisions.c.ended_at.is_(None)
is_denial = decisions.c.effect == sa.literal_column(f"'{values.DecisionEffect.DENIAL.value}'")

REQUEST_COLUMNS = (
    *(column for column in requests.c if column.name != "resume_context"),
    requests.c.resume_context.is_not(None).label("has_context"),
)
"""All columns of a request except the encrypted context, which is fetched only for decryption."""


def tuple_columns(access: values.AccessTuple) -> dict[str, str]:
    """Return the access columns with digest and folded target, for lookups."""
    return {**access_dict(access), "digest": access.digest, "target_folded": access.target.casefold()}


def to_access(row: sa.Row[Any]) -> values.AccessTuple:
    """Return the access of a row."""
    subject = Subject(SubjectKind(row.subject_kind), row.subject_name)
    return values.AccessTuple(subject, ResourceType(row.resource_type), Operation(row.operation), row.target)


def to_origin(row: sa.Row[Any]) -> values.Requester:
    """Return the origin of a request."""
    return values.Requester(row.user_id, row.organization_id, row.session_key, row.task_id)


def from_row(kind: type[T], row: sa.Row[Any], **converted: Any) -> T:
    """Return a dataclass from the columns with the names of its fields, and from the converted values."""
    columns = row._mapping  # noqa: SLF001 - the documented way where a column is named like a method
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type] # every caller names a dataclass
    return kind(**{name: columns[name] for name in names if name not in converted}, **converted)


def to_request(row: sa.Row[Any]) -> values.StoredRequest:
    """Return a request from the columns in ``REQUEST_COLUMNS``."""
    return from_row(
        values.StoredRequest,
        row,
        access=to_access(row),
        chain=tuple(json.loads(row.chain)),
        origin=to_origin(row),
        has_context=bool(row.has_context),
        state=values.RequestState(row.state),
        session_ended=bool(row.session_ended),
        decision_id=row.decision_id or "",
    )


def to_decision(row: sa.Row[Any]) -> values.Decision:
    """Return a decision."""
    effect, scope = values.DecisionEffect(row.effect), values.DecisionScope(row.scope)
    request_id = row.request_id or ""
    return from_row(values.Decision, row, access=to_access(row), effect=effect, scope=scope, request_id=request_id)


def to_resume(row: sa.Row[Any]) -> values.Resumption:
    """Return a resumption from its columns and those of its request."""
    subject = Subject(SubjectKind(row.subject_kind), row.subject_name)
    state = values.ResumptionState(row.state)
    return from_row(
        values.Resumption, row, action=row.resume_action, origin=to_origin(row), subject=subject, state=state
    )


def to_audit_record(row: sa.Row[Any]) -> values.AuditRecord:
    """Return an audit record; a tampered row that cannot be decoded becomes a record with a wrong hash."""
    try:
        action = values.AuditAction(row.action)
        access = None if row.subject_kind is None else to_access(row)
        before, after = _json_object(row.before), _json_object(row.after)
    except ValueError:
        action, access, before, after = values.AuditAction.CHECK_FAILED, None, {}, {"unreadable": repr(tuple(row))}
    return from_row(values.AuditRecord, row, action=action, access=access, before=before, after=after)


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError  # noqa: TRY004 - unreadable like any other text
    return value
