"""What the service remembers and hands out: requests, decisions, audit records, resumptions. Frozen values."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from .targets import decision_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from democrai_sandbox.policy import Operation, ResourceType, Subject, SubjectKind


class Effect(StrEnum):
    """What a decision says."""

    APPROVAL = "approval"
    DENIAL = "denial"


class Scope(StrEnum):
    """How far a decision reaches. A denial is always permanent."""

    SESSION = "session"
    PERMANENT = "permanent"


class RequestState(StrEnum):
    """What became of a request."""

    PENDING = "pending"
    APPROVED_FOR_SESSION = "approved_for_session"
    APPROVED = "approved"
    DENIED = "denied"
    AGED_OUT = "aged_out"
    """Nobody decided in time. That is no decision: asking again makes a new request."""
    REVOKED = "revoked"
    """It was approved or denied, and that decision was revoked: asking again makes a new request."""
    EXPIRED = "expired"
    """It was approved for a time or a session that is over."""
    REPLACED = "replaced"
    """It was approved or denied, and a decision to the contrary took the place of that one."""


class ResumeState(StrEnum):
    """What became of an action that was to go on after an approval."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """Its attempts are used up, or it can never succeed."""


class AuditAction(StrEnum):
    """What an audit record is about."""

    REQUESTED = "requested"
    APPROVED_FOR_SESSION = "approved_for_session"
    APPROVED = "approved"
    DENIED = "denied"
    REVOKED = "revoked"
    EXPIRED = "expired"
    SESSION_ENDED = "session_ended"
    AGED_OUT = "aged_out"
    RESUME_ATTACHED = "resume_attached"
    """A request that was put down before got an action to go on with."""
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
    """Somebody wrote something down about a request: a remark, or a question to who asked."""
    SHADOW_STARTED = "shadow_started"
    """A subject runs beside a candidate manifest from now on."""
    SHADOW_ENDED = "shadow_ended"


@dataclass(frozen=True, slots=True)
class AccessTuple:
    """What a decision is about: who, what kind of resource, which operation, which normalised target."""

    subject: Subject
    resource_type: ResourceType
    operation: Operation
    target: str

    @property
    def digest(self) -> str:
        """A text of fixed length for unique constraints: targets are too long for an index of PostgreSQL."""
        key = decision_key(self.resource_type, self.target)  # one for all spellings that are equivalent
        parts = [self.subject.kind, self.subject.name, self.resource_type, self.operation, key]
        # Not as escapes: a surrogate pair in two halves would read like the character it stands for.
        encoded = json.dumps(parts, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return hashlib.sha256(encoded).hexdigest()


@dataclass(frozen=True, slots=True)
class Origin:
    """On whose behalf a subject asked. Empty texts stand for what is not there, so that uniqueness holds."""

    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    task_id: str = ""


@dataclass(frozen=True, slots=True)
class NewRequest:
    """A request as it is registered."""

    access: AccessTuple
    raw_target: str
    chain: tuple[str, ...]
    origin: Origin
    resume_action: str = ""
    id: str = ""
    """Chosen by the service, because the encrypted context is bound to it."""
    resume_context: bytes | None = field(default=None, repr=False)
    seal_again: Callable[[], bytes] | None = field(default=None, repr=False, compare=False)
    """Gives the context as it is to be stored. The store asks when nobody can look for contexts before it has stored
    this one: what was sealed with a key that is not in use any more by then is sealed anew."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it is stored. The encrypted context stays in the store; it is fetched where it is decrypted."""

    id: str
    access: AccessTuple
    raw_target: str
    chain: tuple[str, ...]
    origin: Origin
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
    """The decision that answers it; empty while it waits."""
    ended_at: datetime | None = None
    """When that decision ended, if it did, ..."""
    ended_by: str = ""
    """...and who ended it."""

    @property
    def changed_at(self) -> datetime | None:
        """Since when it has its state; None before a decision."""
        return self.ended_at or self.decided_at

    @property
    def changed_by(self) -> str:
        """Who gave it its state; empty before a decision."""
        return self.ended_by if self.ended_at else self.decided_by


@dataclass(frozen=True, slots=True)
class Registered:
    """What registering a request came to."""

    request_id: str
    """Empty when the very same was decided meanwhile: then nothing was written."""
    created: bool
    """False: the same was asked before by the same user in the same session, and is counted there."""
    full: bool = False
    """Nothing was written: as much as may wait for this subject and user waits already."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision as it is stored. One that ended stays, for the history."""

    id: str
    access: AccessTuple
    effect: Effect
    scope: Scope
    session_key: str
    created_at: datetime
    created_by: str
    reason: str
    request_id: str
    generation: int
    """Of the last change to this row: nodes read what is newer than their own."""
    expires_at: datetime | None = None
    ended_at: datetime | None = None
    ended_by: str = ""
    last_used: datetime | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """The state that a decision was made from: the last change to the decisions about these tuples."""

    about: tuple[AccessTuple, ...]
    version: int
    """The highest generation of the decisions about them, ended ones included; 0 when there was none."""


@dataclass(frozen=True, slots=True)
class NewDecision:
    """A decision that somebody makes."""

    access: AccessTuple
    effect: Effect
    scope: Scope
    decided_by: str
    session_key: str = ""
    reason: str = ""
    request_id: str = ""
    """The pending request that it answers; it must be pending still. Empty for one that nobody asked for."""
    expires_at: datetime | None = None
    also_answers: tuple[str, ...] = ()
    """Further requests that it covers; those that are not pending any more are left alone."""
    bulk: str = ""
    """What decisions have in common that were made in one go; empty for one by itself."""
    expected: Expected | None = None
    """The state that the caller was shown; a change since is a conflict. None compares nothing."""


@dataclass(frozen=True, slots=True)
class Aftermath:
    """What a decision did when it was made."""

    decision: Decision
    answered: tuple[str, ...] = ()
    """The requests that it answered, its own among them."""
    replaced: tuple[str, ...] = ()
    """The decisions that it ended."""
    started: tuple[str, ...] = ()
    """Those of the requests whose action has begun to resume since."""
    bulk: str = ""
    newer: Decision | None = None
    """A decision in force about the same that was made since. Then what was replaced cannot be put back."""


@dataclass(frozen=True, slots=True)
class Undone:
    """What undoing a decision came to."""

    decision: Decision
    reopened: tuple[str, ...]
    """The requests that wait again."""
    kept: tuple[str, ...]
    """Those that stay answered: their action has resumed, or they were asked for anew."""
    restored: tuple[Decision, ...]
    """What is in force again in its place."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How many pending requests a decision would answer, besides its own."""

    requests: int
    users: int
    in_session: int
    """Of the session of its own request: what an approval for that session answers."""
    more: bool = False
    """There are more than were looked at."""


class DecisionRow(NamedTuple):
    """A decision in the plain form in which nodes load it: a hundred thousand of them come in one go."""

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
    """Of a denial, whose subject is told; an approval needs none."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since a generation; from the beginning, what is in force."""

    generation: int
    rows: tuple[DecisionRow, ...]


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One row of the audit: who did what when, what was before and after, and the hash of all up to it."""

    sequence: int
    at: datetime
    action: AuditAction
    actor: str
    """The user who acted, ``subject:<kind>:<name>`` for a request, ``system`` for what happens by itself."""
    access: AccessTuple | None
    request_id: str
    before: dict[str, Any]
    after: dict[str, Any]
    previous_hash: str
    hash: str


@dataclass(frozen=True, slots=True)
class Resume:
    """An action that goes on after the approval of its request, as the requester."""

    id: str
    request_id: str
    action: str
    origin: Origin
    subject: Subject
    state: ResumeState
    attempts: int
    created_at: datetime
    next_attempt: datetime
    leased_by: str = ""
    last_error: str = ""
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RequestFilter:
    """Which requests to list; what is empty does not narrow."""

    states: tuple[RequestState, ...] = ()
    subject: Subject | None = None
    subject_kind: SubjectKind | None = None
    resource_type: ResourceType | None = None
    operation: Operation | None = None
    user_id: str = ""
    organization_id: str = ""
    session_key: str = ""
    text: str = ""
    """Part of the normalised target, compared without case."""
    newer_than: datetime | None = None
    """First seen at this time or later..."""
    older_than: datetime | None = None
    """...and before this one."""


@dataclass(frozen=True, slots=True)
class DecisionFilter:
    """Which decisions to list; what is empty does not narrow."""

    effect: Effect | None = None
    scope: Scope | None = None
    subject: Subject | None = None
    resource_type: ResourceType | None = None
    operation: Operation | None = None
    session_key: str = ""
    text: str = ""
    live: bool | None = True
    """True: in force. False: ended. None: both."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which audit records to list; what is empty does not narrow."""

    actions: tuple[AuditAction, ...] = ()
    actor: str = ""
    subject: Subject | None = None
    request_id: str = ""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """Where to go on: pages follow the last item seen, so that rows that come in meanwhile move nothing."""

    limit: int = 100
    after: str = ""
    """The ``next`` of the page before."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page of a list."""

    items: tuple[Any, ...]
    next: str
    """Empty when there is no more."""

    def __iter__(self) -> Iterator[Any]:
        """Go through the items of this page."""
        return iter(self.items)

    def __len__(self) -> int:
        """Return the number of items on this page."""
        return len(self.items)
