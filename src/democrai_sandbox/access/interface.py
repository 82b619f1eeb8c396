"""What the service asks of its parts, and of the host around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .lookups import Lookups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from datetime import datetime

    from democrai_sandbox.policy import AccessDecision, Subject, SubjectChain, SubjectKind

    from .identity import Caller
    from .values import (
        AccessTuple,
        Aftermath,
        AuditAction,
        AuditFilter,
        AuditRecord,
        Changes,
        Decision,
        DecisionFilter,
        Listing,
        NewDecision,
        NewRequest,
        Origin,
        Page,
        Registered,
        Request,
        RequestFilter,
        Resume,
        Undone,
    )


class Store(Lookups, Protocol):
    """Where requests, decisions, audit and resumptions are kept. Synchronous; safe to use from many threads.

    Every method that changes something is one transaction with its audit record in it: either all of it happened, or
    nothing. When the database cannot be reached it raises ``StoreUnavailable``; it never answers from memory.
    Times are aware and in UTC.
    """

    def check_schema(self) -> str:
        """Return the schema's version if this code can work with it; else raise ``SchemaOutdated`` with what to do."""
        ...

    def close(self) -> None:
        """Let all connections go."""
        ...

    # ---- what nodes read

    def generation(self) -> int:
        """Return the number of the last change to the decisions; 0 when there was none."""
        ...

    def changes(self, since: int) -> Changes:
        """Return the decisions that changed after a generation, ended ones included; since 0 only those in force."""
        ...

    # ---- acts

    def register(self, request: NewRequest, *, now: datetime, most_pending: int = 0) -> Registered:
        """Add a pending request, or count it where the same tuple and origin (user, session) is pending already.

        No more than ``most_pending`` wait for one subject and user at a time; 0 sets no limit.
        """
        ...

    def count_again(self, request_id: str, times: int, *, now: datetime) -> bool:
        """Add to the count of a pending request; False when it is not pending any more."""
        ...

    def attach_resume(self, request: NewRequest, *, now: datetime) -> bool:
        """Give the pending request of this id the resume action of this one; False when it has one, or is decided.

        False also when the user, the organization or the session of its origin is another.
        """
        ...

    def decide(self, decision: NewDecision, *, now: datetime) -> Decision:
        """Record an approval or a denial, and end what contradicts it or is the same; answer its request.

        Raises ``RequestUnknown``, or ``DecisionConflict`` when the request was decided meanwhile. A request with a
        resume action that is approved gets its resumption in the same transaction.
        """
        ...

    def revoke(self, decision_id: str, *, actor: str, reason: str, now: datetime) -> Decision:
        """End a decision; raises ``DecisionUnknown``, or ``DecisionConflict`` when it has ended already."""
        ...

    def undo(self, decision_id: str, *, actor: str, reason: str, now: datetime) -> Undone:
        """End a decision, have the requests that it answered wait again, and restore the decisions that it replaced.

        Raises ``DecisionUnknown``, or ``DecisionConflict`` when it has ended, or a newer one stands in the way.
        """
        ...

    def end_session(self, session_key: str, *, actor: str, now: datetime) -> int:
        """End the approvals of a session, mark its pending requests; return how many approvals ended.

        That it has ended is kept: what it asks for later is marked too, and nothing is approved for it any more.
        """
        ...

    def end_expired(self, *, now: datetime) -> int:
        """End the decisions whose time is over; return how many."""
        ...

    def rank_waiting(self) -> int:
        """Assess pending requests that a node of an earlier version stored; return how many they were."""
        ...

    def age_out(self, *, before: datetime, now: datetime) -> int:
        """Give up pending requests that were last seen before a time; return how many. Nothing is decided by it."""
        ...

    def note_use(self, uses: Mapping[str, datetime]) -> None:
        """Remember when decisions, by id, were last used. No audit record, no new generation."""
        ...

    # ---- lists

    def request(self, request_id: str) -> Request:
        """Return one request; raises ``RequestUnknown``."""
        ...

    def requests(self, wanted: RequestFilter, page: Page) -> Listing:
        """List requests, those seen last first."""
        ...

    def decision(self, decision_id: str) -> Decision:
        """Return one decision; raises ``DecisionUnknown``."""
        ...

    def aftermath(self, decision_id: str) -> Aftermath:
        """Return what a decision did when it was made; raises ``DecisionUnknown``."""
        ...

    def decisions(self, wanted: DecisionFilter, page: Page) -> Listing:
        """List decisions, the newest first."""
        ...

    # ---- audit

    def record(
        self,
        action: AuditAction,
        *,
        actor: str,
        now: datetime,
        access: AccessTuple | None = None,
        request_id: str = "",
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
    ) -> AuditRecord:
        """Append a record by itself: for what happens without a change to requests and decisions."""
        ...

    def audit(self, wanted: AuditFilter, page: Page) -> Listing:
        """List audit records, the newest first."""
        ...

    def audit_rows(self, after: int = 0) -> Iterator[AuditRecord]:
        """Yield all records after a sequence number in their order, without holding them all."""
        ...

    def audit_head(self) -> tuple[int, str]:
        """Return sequence and hash that the last record must have; (0, "") when there is none."""
        ...

    # ---- resumptions

    def resume_context(self, request_id: str) -> bytes | None:
        """Return the encrypted context of a request."""
        ...

    def replace_contexts(self, reseal: Callable[[Request, bytes], bytes | None]) -> int:
        """Exchange the encrypted contexts for which ``reseal`` gives another; return how many. For new keys."""
        ...

    def settle(self) -> None:
        """Return when every context that was sealed with a key of before is stored: ``replace_contexts`` sees it."""
        ...

    def claim_resume(self, *, node: str, lease_until: datetime, now: datetime) -> Resume | None:
        """Take the next resumption that is due, or whose lease has run out; its attempts are counted with it.

        Those whose approval has ended meanwhile are not given out: they have failed then, for good.
        """
        ...

    def finish_resume(self, resume: Resume, *, node: str, error: str, retry_at: datetime | None, now: datetime) -> bool:
        """Say how an attempt ended: no error is success, an error without a time for the next attempt is the end.

        After a success the context is removed.
        False, and nothing is written, when this node's lease was given to another or the resumption is finished.
        """
        ...

    def resumes(self, *, unfinished: bool, page: Page) -> Listing:
        """List resumptions, the newest first."""
        ...


class Bus(Protocol):
    """Tells other nodes that something changed. What it carries grants nothing: it only makes nodes look.

    Losing events is allowed, as long as the receiver is told that it may have lost some.
    """

    node: str
    """Unique by construction."""

    def publish(self, generation: int) -> None:
        """Tell the others. Does not wait for them, and does not raise when they cannot be reached."""
        ...

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Begin to listen. ``heard`` gets the generation that another node told of; None for a gap."""
        ...

    def stop(self) -> None:
        """Stop listening and let everything go. May be called twice."""
        ...

    @property
    def connected(self) -> bool:
        """Whether events get through now, as far as is known here."""
        ...


class GuardState(Protocol):
    """What is in force where the service is asked; the guard's view fits it."""

    @property
    def subject(self) -> str: ...
    @property
    def subject_kind(self) -> SubjectKind: ...
    @property
    def subject_chain(self) -> SubjectChain: ...
    @property
    def user_id(self) -> Any: ...
    @property
    def organization_id(self) -> Any: ...
    @property
    def session_key(self) -> Any: ...


class Question(Protocol):
    """What the guard asks when a policy does not allow something."""

    @property
    def subject(self) -> str: ...
    @property
    def subject_kind(self) -> str: ...
    @property
    def subject_chain(self) -> tuple[str, ...]: ...
    @property
    def resource_type(self) -> str: ...
    @property
    def operation(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def register_request(self) -> bool: ...
    @property
    def user_id(self) -> Any: ...
    @property
    def organization_id(self) -> Any: ...
    @property
    def session_key(self) -> Any: ...
    @property
    def resume_action(self) -> str: ...
    @property
    def resume_context(self) -> str | None: ...


class Surroundings(Protocol):
    """The host: who is asking, under which guard, and how to leave it for the service's own work."""

    def caller(self) -> Caller | None:
        """Return the identity of the request that is being served; None outside any."""
        ...

    def is_guarded(self) -> bool:
        """Return whether something guards the calling code; asked before every check."""
        ...

    def place_of(self, path: str) -> str:
        """Return where an absolute path leads, all links followed; asked for code of the host only."""
        ...

    def guard(self) -> GuardState | None:
        """Return what guards the calling code; None for code of the host."""
        ...

    def ask(
        self,
        resource_type: str,
        operation: str,
        target: str,
        *,
        register_request: bool,
        resume_action: str,
        resume_context: str | None,
    ) -> AccessDecision:
        """Ask for guarded code through its guard: the allowlist first, then ``decide`` of the service, outside it.

        So who asks comes from the guard's own state, whatever the code that calls has done to ours.
        """
        ...

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context in which the service's own files and connections are not the caller's."""
        ...


class ResumeHandler(Protocol):
    """Goes on with what was stopped. Runs outside any guard and as the original requester, which it enters itself."""

    def __call__(self, context: Any, *, origin: Origin, subject: Subject, request_id: str) -> object:
        """Do it. ``request_id`` is the same in every attempt: what must not happen twice is kept by it."""
        ...
