"""Tables as this version uses them, with their column types. Migrations create them; a test compares both."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    literal_column,
    text,
)

from democrai_sandbox.access.risk import NOT_ASSESSED
from democrai_sandbox.access.values import AuditAction, DecisionEffect, DecisionScope, RequestState, ResumptionState
from democrai_sandbox.policy import Operation, ResourceType, SubjectKind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import StrEnum

    from sqlalchemy import Dialect

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

MARK = "\x10"
"""Prefix of the hexadecimal code of a character that cannot be stored directly. Occurs only in stored texts."""

_UNSTORABLE = re.compile("[\0\x10\ud800-\udfff]")
_MARKED = re.compile("\x10([0-9a-f]{4})")


def to_micros(moment: datetime) -> int:
    """Return an aware time as microseconds since the epoch; exact, unlike float seconds."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Return the time in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


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


class AnyText(TypeDecorator[str]):
    """Text from outside, stored without loss."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> Any:  # noqa: ARG002 - SQLAlchemy's signature
        """Encode for the database."""
        return None if value is None else to_stored(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:  # noqa: ARG002 - the same
        """Decode from the database."""
        return None if value is None else from_stored(value)


class Moment(TypeDecorator[datetime]):
    """Aware time, stored as an integer."""

    impl = BigInteger().with_variant(Integer(), "sqlite")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:  # noqa: ARG002 - the same
        """Encode for the database."""
        return None if value is None else to_micros(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - the same
        """Decode from the database."""
        return None if value is None else from_micros(value)


def big_integer() -> Any:
    """Return the type of 64-bit counters, with the name that SQLite's strict tables know."""
    return BigInteger().with_variant(Integer(), "sqlite")


metadata = MetaData()


def _one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    listed = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


def _about(*, required: bool = True) -> Iterator[Any]:
    """Yield the access columns of a row."""
    for name in ("subject_kind", "subject_name", "resource_type", "operation"):
        yield Column(name, Text, nullable=not required)
    yield Column("target", AnyText, nullable=not required)
    yield _one_of("subject_kind", SubjectKind)
    yield _one_of("resource_type", ResourceType)
    yield _one_of("operation", Operation)


def _partial_index(name: str, *columns: str, where: str, unique: bool = False) -> Index:
    return Index(name, *columns, unique=unique, sqlite_where=text(where), postgresql_where=text(where))


meta = Table(
    "access_meta",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("generation", big_integer(), nullable=False),
    Column("audit_sequence", big_integer(), nullable=False),
    Column("audit_hash", Text, nullable=False),
    CheckConstraint("id = 1", name="ck_single"),
    sqlite_strict=True,
)

requests = Table(
    "access_requests",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("digest", Text, nullable=False),
    *_about(),
    Column("target_folded", AnyText, nullable=False),
    Column("raw_target", AnyText, nullable=False),
    Column("chain", Text, nullable=False),
    Column("user_id", AnyText, nullable=False),
    Column("organization_id", AnyText, nullable=False),
    Column("session_key", AnyText, nullable=False),
    Column("task_id", AnyText, nullable=False),
    Column("resume_action", AnyText, nullable=False),
    Column("resume_context", LargeBinary),
    Column("state", Text, nullable=False),
    Column("first_seen", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    Column("count", big_integer(), nullable=False),
    Column("session_ended", Integer, nullable=False),
    Column("decided_at", Moment),
    Column("decided_by", AnyText, nullable=False),
    Column("reason", AnyText, nullable=False),
    Column("risk", Integer, nullable=False, server_default=text(str(NOT_ASSESSED))),
    Column("decision_id", AnyText),
    Column("ended_at", Moment),
    Column("ended_by", AnyText, nullable=False, server_default=""),
    _one_of("state", RequestState),
    _partial_index(
        "uq_access_requests_pending", "digest", "user_id", "session_key", where="state = 'pending'", unique=True
    ),
    Index("ix_access_requests_seen", "state", "last_seen", "id"),
    _partial_index("ix_access_requests_asker", "user_id", "subject_kind", "subject_name", where="state = 'pending'"),
    _partial_index("ix_access_requests_session", "session_key", where="state = 'pending' AND session_key <> ''"),
    _partial_index("ix_access_requests_risk", "state", "risk", "id", where="state = 'pending'"),
    _partial_index("ix_access_requests_group", "state", "digest", "id", where="state = 'pending'"),
    _partial_index("ix_access_requests_waiting", "state", "first_seen", where="state = 'pending'"),
    _partial_index("ix_access_requests_decided", "decided_at", where="decided_at IS NOT NULL"),
    _partial_index("ix_access_requests_decision", "decision_id", where="decision_id IS NOT NULL"),
    sqlite_strict=True,
)

decisions = Table(
    "access_decisions",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("digest", Text, nullable=False),
    *_about(),
    Column("target_folded", AnyText, nullable=False),
    Column("effect", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("session_key", AnyText, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("created_by", AnyText, nullable=False),
    Column("reason", AnyText, nullable=False),
    Column("request_id", AnyText, ForeignKey("access_requests.id")),
    Column("generation", big_integer(), nullable=False),
    Column("expires_at", Moment),
    Column("ended_at", Moment),
    Column("ended_by", AnyText, nullable=False),
    Column("last_used", Moment),
    _one_of("effect", DecisionEffect),
    _one_of("scope", DecisionScope),
    CheckConstraint("(scope = 'session') = (session_key <> '')", name="ck_session"),
    CheckConstraint("effect = 'approval' OR scope = 'permanent'", name="ck_denial"),
    _partial_index(
        "uq_access_decisions_live", "digest", "effect", "scope", "session_key", where="ended_at IS NULL", unique=True
    ),
    Index("ix_access_decisions_generation", "generation"),
    Index("ix_access_decisions_digest", "digest"),
    _partial_index("ix_access_decisions_live", "generation", where="ended_at IS NULL"),
    Index("ix_access_decisions_created", "created_at", "id"),
    Index("ix_access_decisions_subject", "subject_kind", "subject_name", "created_at", "id"),
    _partial_index("ix_access_decisions_session", "session_key", where="ended_at IS NULL AND session_key <> ''"),
    _partial_index(
        "ix_access_decisions_denials", "subject_kind", "subject_name", where="ended_at IS NULL AND effect = 'denial'"
    ),
    _partial_index("ix_access_decisions_expiry", "expires_at", where="ended_at IS NULL AND expires_at IS NOT NULL"),
    sqlite_strict=True,
)

audit = Table(
    "access_audit",
    metadata,
    Column("sequence", big_integer(), primary_key=True, autoincrement=False),
    Column("at", Moment, nullable=False),
    Column("action", Text, nullable=False),
    Column("actor", AnyText, nullable=False),
    *_about(required=False),
    Column("request_id", AnyText, nullable=False),
    Column("before", Text, nullable=False),
    Column("after", Text, nullable=False),
    Column("previous_hash", Text, nullable=False),
    Column("hash", Text, nullable=False),
    _one_of("action", AuditAction),
    Index("ix_access_audit_request", "request_id", "sequence"),
    sqlite_strict=True,
)

resumes = Table(
    "access_resumes",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("request_id", AnyText, ForeignKey("access_requests.id"), nullable=False, unique=True),
    Column("decision_id", AnyText, ForeignKey("access_decisions.id"), nullable=False),
    Column("state", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("next_attempt", Moment, nullable=False),
    Column("leased_by", AnyText, nullable=False),
    Column("lease_until", Moment),
    Column("last_error", AnyText, nullable=False),
    Column("finished_at", Moment),
    _one_of("state", ResumptionState),
    _partial_index("ix_access_resumes_due", "next_attempt", where="finished_at IS NULL"),
    Index("ix_access_resumes_created", "created_at", "id"),
    sqlite_strict=True,
)

ended_sessions = Table(
    "access_ended_sessions",
    metadata,
    Column("session_key", AnyText, primary_key=True),
    Column("ended_at", Moment, nullable=False),
    sqlite_strict=True,
)

# Literal instead of a bound value, so that PostgreSQL uses the partial indexes.
is_pending = requests.c.state == literal_column(f"'{RequestState.PENDING.value}'")
is_live = decisions.c.ended_at.is_(None)
is_denial = decisions.c.effect == literal_column(f"'{DecisionEffect.DENIAL.value}'")
