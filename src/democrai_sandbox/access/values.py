"""Frozen values of the service, with their ids: requests, decisions, audit records, resumptions."""

from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox._moved import renamed

from .targets import decision_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind

    from .verdicts import RiskFactor, RiskLevel

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # without i, l, o and u, which are easily misread
_TIME_DIGITS = 10
_RANDOM_BYTES = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_micros(moment: datetime) -> int:
    """Return an aware time as microseconds since the epoch; exact, unlike float seconds."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def from_micros(micros: int) -> datetime:
    """Return the time in UTC."""
    return _EPOCH + timedelta(microseconds=micros)


def new_id() -> str:
    """Return 26 characters: ten for the time in milliseconds, sixteen random ones."""
    return _digits(time.time_ns() // 1_000_000, _TIME_DIGITS) + _digits(int.from_bytes(os.urandom(_RANDOM_BYTES)), 16)


def _digits(number: int, count: int) -> str:
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(count)))


class DecisionEffect(StrEnum):
    """Effect of a decision."""

    APPROVAL = "approval"
    DENIAL = "denial"


class DecisionScope(StrEnum):
    """Scope of a decision. A denial is always permanent."""

    SESSION = "session"
    PERMANENT = "permanent"


class RequestState(StrEnum):
    """State of a request."""

    PENDING = "pending"
    APPROVED_FOR_SESSION = "approved_for_session"
    APPROVED = "approved"
    DENIED = "denied"
    AGED_OUT = "aged_out"
    """The request was not decided in time. This is not a decision: the next access files a new request."""
    REVOKED = "revoked"
    """The decision was revoked: the next access files a new request."""
    EXPIRED = "expired"
    """The request was approved for a time or a session that has ended."""
    REPLACED = "replaced"
    """A contrary decision replaced the decision about the request."""


class ResumptionState(StrEnum):
    """State of a resume action."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """All attempts failed, or the action can never succeed."""


class AuditAction(StrEnum):
    """Event that an audit record is about."""

    REQUESTED = "requested"
    APPROVED_FOR_SESSION = "approved_for_session"
    APPROVED = "approved"
    DENIED = "denied"
    REVOKED = "revoked"
    EXPIRED = "expired"
    SESSION_ENDED = "session_ended"
    AGED_OUT = "aged_out"
    RESUME_ATTACHED = "resume_attached"
    """A resume action was attached to a pending request."""
    RESUME_SUCCEEDED = "resume_succeeded"
    RESUME_FAILED = "resume_failed"
    CHECK_FAILED = "check_failed"
    ACCOUNT_SIGNED_IN = "account_signed_in"
    ACCOUNT_SIGN_IN_FAILED = "account_sign_in_failed"
    ACCOUNT_SIGNED_OUT = "account_signed_out"
    ACCOUNT_PASSWORD_CHANGED = "account_password_changed"  # noqa: S105 - what was done, no password
    ACCOUNT_ADDED = "account_added"
    ACCOUNT_CHANGED = "account_changed"
    ACCOUNT_TOKEN_MADE = "account_token_made"  # noqa: S105 - what was done, no password
    ACCOUNT_TOKEN_REVOKED = "account_token_revoked"  # noqa: S105 - what was done, no password
    NOTED = "noted"
    """A user added a note to a request: a remark, or a question to the requester."""
    SHADOW_STARTED = "shadow_started"
    """A shadow run with a candidate manifest started."""
    SHADOW_ENDED = "shadow_ended"


@dataclass(frozen=True, slots=True)
class AccessTuple:
    """Access that a decision is about: subject, resource type, operation and normalized target."""

    subject: Subject
    resource_type: ResourceType
    operation: Operation
    target: str

    @property
    def digest(self) -> str:
        """Text of fixed length for unique constraints, because targets are too long for a PostgreSQL index."""
        key = decision_key(self.resource_type, self.target)  # the same for all equivalent spellings
        parts = [self.subject.kind, self.subject.name, self.resource_type, self.operation, key]
        # Without escapes: two escaped halves of a surrogate pair would equal the escaped character.
        encoded = json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return hashlib.sha256(encoded).hexdigest()


@dataclass(frozen=True, slots=True)
class Requester:
    """User, organization, session and task of a request. Missing parts are empty texts, so that uniqueness works."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """Request to be registered."""

    access: AccessTuple
    raw_target: str
    chain: tuple[str, ...]
    origin: Requester
    resume_action: str = ""
    id: str = ""
    """Chosen by the service, because the encrypted context is bound to it."""
    resume_context: bytes | None = field(default=None, repr=False)
    seal_again: Callable[[], bytes] | None = field(default=None, repr=False, compare=False)
    """Function that the store calls while ``replace_contexts`` has to wait; it seals again with the current key."""


@dataclass(frozen=True, slots=True)
class StoredRequest:
    """Stored request. The encrypted context stays in the store and is fetched only for decryption."""

    id: str
    access: AccessTuple
    raw_target: str
    chain: tuple[str, ...]
    origin: Requester
    resume_action: str
    has_context: bool
    state: RequestState
    first_seen: datetime
    last_seen: datetime
    count: int
    session_ended: bool = False
    decided_at: datetime | None = None
    decided_by: str = ""
    reason: str = ""
    decision_id: str = ""
    """Decision that answers the request; empty while it is pending."""
    ended_at: datetime | None = None
    """Time when that decision ended."""
    ended_by: str = ""
    """User who ended that decision."""

    @property
    def changed_at(self) -> datetime | None:
        """Time of the last change of state; None before a decision."""
        return self.ended_at or self.decided_at

    @property
    def changed_by(self) -> str:
        """User who caused the last change of state; empty before a decision."""
        return self.ended_by if self.ended_at else self.decided_by


@dataclass(frozen=True, slots=True)
class Registered:
    """Result of registering a request."""

    request_id: str
    """Empty if the same access was decided meanwhile; nothing was written then."""
    created: bool
    """False if the same user has already requested this in the same session; it was counted."""
    full: bool = False
    """Whether nothing was written because the limit of pending requests is reached."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Stored decision. Ended decisions are kept for the history."""

    id: str
    access: AccessTuple
    effect: DecisionEffect
    scope: DecisionScope
    session_key: str
    created_at: datetime
    created_by: str
    reason: str
    request_id: str
    generation: int
    """Generation of the last change to this row; nodes read rows newer than their own generation."""
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    ended_by: str = ""
    last_used: datetime | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """State on which a decision is based: the last change to the decisions about these accesses."""

    about: tuple[AccessTuple, ...]
    version: int
    """Highest generation of the decisions about them, including ended ones; 0 if none exists."""


@dataclass(frozen=True, slots=True)
class NewDecision:
    """Decision to be stored."""

    access: AccessTuple
    effect: DecisionEffect
    scope: DecisionScope
    decided_by: str
    session_key: str = ""
    reason: str = ""
    request_id: str = ""
    """Pending request that it answers; it must still be pending. Empty for a decision without a request."""
    expires_at: datetime | None = None
    also_answers: tuple[str, ...] = ()
    """Other requests that it covers; those that are not pending anymore stay unchanged."""
    bulk: str = ""
    """Label that groups the decisions of one bulk operation; empty for a single decision."""
    expected: Expected | None = None
    """State that the caller saw; a change since then is a conflict. None disables the check."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """Effects of a decision at the time it was made."""

    decision: Decision
    answered: tuple[str, ...] = ()
    """Requests that it answered, including its own."""
    replaced: tuple[str, ...] = ()
    """Decisions that it ended."""
    started: tuple[str, ...] = ()
    """Answered requests whose action has started to resume."""
    bulk: str = ""
    newer: Decision | None = None
    """A decision in force about the same that was made since. Then what was replaced cannot be put back."""


@dataclass(frozen=True, slots=True)
class Undone:
    """Result of undoing a decision."""

    decision: Decision
    reopened: tuple[str, ...]
    """Requests that are pending again."""
    kept: tuple[str, ...]
    """Requests that stay answered: their action has resumed, or they were filed again."""
    restored: tuple[Decision, ...]
    """Decisions that are in force again."""


@dataclass(frozen=True, slots=True)
class DecisionReach:
    """Number of other pending requests that a decision would answer."""

    requests: int
    users: int
    in_session: int
    """Requests of the same session, which a session approval answers."""
    more: bool = False
    """Whether more requests exist than were examined."""


class DecisionRow(NamedTuple):
    """Decision as a plain tuple, because nodes load a hundred thousand of them together."""

    id: str
    subject_kind: str
    subject_name: str
    resource_type: str
    operation: str
    target: str
    effect: str
    scope: str
    session_key: str
    expires_at: int | None
    """In microseconds since the epoch."""
    ended: bool
    reason: str = ""
    """Reason of a denial, which the subject gets; empty for an approval."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes after a generation; after 0, the decisions in force."""

    generation: int
    rows: tuple[DecisionRow, ...]


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """Audit record: actor, action, time, state before and after, and the hash of the chain up to it."""

    sequence: int
    at: datetime
    action: AuditAction
    actor: str
    """User who acted, ``subject:<kind>:<name>`` for a request, ``system`` for automatic events."""
    access: AccessTuple | None
    request_id: str
    before: dict[str, Any]
    after: dict[str, Any]
    previous_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class Resumption:
    """Action that resumes after the approval of its request, as the requester."""

    id: str
    request_id: str
    action: str
    origin: Requester
    subject: Subject
    state: ResumptionState
    attempts: int
    created_at: datetime
    next_attempt: datetime
    leased_by: str = ""
    last_error: str = ""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Filter for requests; empty fields match everything."""

    states: tuple[RequestState, ...] = ()
    subject: Subject | None = None
    subject_kind: SubjectKind | None = None
    resource_type: ResourceType | None = None
    operation: Operation | None = None
    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    text: str = ""
    """Part of the normalized target, ignoring case."""
    newer_than: datetime | None = None
    """First seen at this time or later."""
    older_than: datetime | None = None
    """First seen before this time."""


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Filter for decisions; empty fields match everything."""

    effect: DecisionEffect | None = None
    scope: DecisionScope | None = None
    subject: Subject | None = None
    resource_type: ResourceType | None = None
    operation: Operation | None = None
    session_key: str = ""
    text: str = ""
    live: bool | None = True
    """True: in force. False: ended. None: both."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Filter for audit records; empty fields match everything."""

    actions: tuple[AuditAction, ...] = ()
    actor: str = ""
    subject: Subject | None = None
    request_id: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Page of a list. Pages continue after the last item, so that new rows do not shift them."""

    limit: int = 100
    after: str = ""
    """``next`` of the previous page."""


@dataclass(frozen=True, slots=True)
class ResultPage:
    """One page of a list."""

    items: tuple[Any, ...]
    next: str
    """Cursor of the next page; empty on the last page."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the items of this page."""
        return iter(self.items)

    def __len__(self) -> int:
        """Return the number of items on this page."""
        return len(self.items)


MOST_USERS = 5
"""Number of users of a group that are named; the others are only counted."""


@dataclass(frozen=True, slots=True)
class PendingGroup:
    """All pending requests for one access, of all users and sessions."""

    access: AccessTuple
    newest_id: str
    """Newest request; it determines the position in the queue."""
    requests: int
    """Number of requests: one for each waiting user and session."""
    count: int
    """Number of times that the access was requested, by all users together."""
    users: tuple[str, ...]
    """Some of the waiting users, the latest first."""
    user_count: int
    session_count: int
    first_seen: datetime
    last_seen: datetime
    risk: RiskLevel
    risk_reasons: tuple[RiskFactor, ...]
    """Highest risk first."""
    chain: tuple[str, ...]
    """Call chain of the newest request."""


__getattr__ = renamed(__name__, {"Page": "PageRequest"})
