"""Protocols of the service's parts and of the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from democrai_sandbox.policy import AccessDecision, Subject, SubjectChain, SubjectKind

    from .caller import Caller
    from .risk import RiskAssessment
    from .values import (
        AccessTuple,
        Aftermath,
        AuditAction,
        AuditFilter,
        AuditRecord,
        Changes,
        Decision,
        DecisionFilter,
        NewDecision,
        NewRequest,
        PageRequest,
        Registered,
        Requester,
        RequestFilter,
        RequestState,
        ResultPage,
        Resumption,
        StoredRequest,
        Undone,
    )


class Lookups(Protocol):
    """Read-only part of a store. The cost of each query hardly depends on the length of the history."""

    def queue(self, wanted: RequestFilter, page: PageRequest) -> ResultPage:
        """List groups of pending requests (``RequestGroup``) by risk, then by their newest request.

        A group moves only when another user requests the same access; repeated requests do not move it between pages.
        """
        ...

    def assessments(self, access: AccessTuple, targets: Sequence[str] = ()) -> tuple[RiskAssessment, ...]:
        """Return the risk of approving an access, from its target and from earlier decisions about it.

        With targets that cover it, return the risk of the same about each of them instead.
        """
        ...

    def counts(self, wanted: RequestFilter) -> dict[RequestState, int]:
        """Count requests by state, all states unless the filter names some; at most the latest 10,000 of each."""
        ...

    def pulse(self) -> tuple[int, int]:
        """Return the generation and the audit sequence. They change with every change on any node."""
        ...

    def oldest_pending(self) -> datetime | None:
        """Return the time of the oldest pending request, or None."""
        ...

    def decision_seconds(self, since: datetime, until: datetime | None = None) -> tuple[float, ...]:
        """Return the waiting time of each request that was decided from ``since`` on and before ``until``."""
        ...

    def audit_record(self, sequence: int) -> AuditRecord:
        """Return one audit record; raises ``AuditRecordUnknown``."""
        ...

    def resume_of(self, request_id: str) -> Resumption | None:
        """Return the resumption of a request, or None."""
        ...

    def waiting_for(self, access: AccessTuple) -> tuple[StoredRequest, ...]:
        """Return the pending requests for an access in any spelling, the newest first, at most 100."""
        ...

    def versions(self, accesses: Collection[AccessTuple]) -> dict[str, int]:
        """Return the generation of the last change to the decisions about each access, by digest; 0 if none exists."""
        ...

    def related(self, access: AccessTuple) -> tuple[Decision, ...]:
        """Return the latest decisions about the subject and resource type, then of other subjects about the target."""
        ...


class Store(Lookups, Protocol):
    """Storage of requests, decisions, the audit log and resumptions. Synchronous and thread-safe.

    Every method that changes something is one transaction that includes its audit record. When the database cannot be
    reached, methods raise ``StoreUnavailable``; they never answer from memory. Times are aware and in UTC.
    """

    def check_schema(self) -> str:
        """Return the schema version if this code supports it; else raise ``SchemaOutdated`` with the next step."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...

    # ---- reads of nodes

    def generation(self) -> int:
        """Return the number of the last change to the decisions; 0 before the first change."""
        ...

    def changes(self, since: int) -> Changes:
        """Return the decisions that changed after a generation, including ended ones; since 0 only those in force."""
        ...

    # ---- acts

    def register(self, request: NewRequest, *, now: datetime, most_pending: int = 0) -> Registered:
        """Store a pending request, or count it if the same access and origin (user, session) is already pending.

        At most ``most_pending`` requests are pending per subject and user; 0 means no limit.
        """
        ...

    def count_again(self, request_id: str, times: int, *, now: datetime) -> bool:
        """Add to the count of a pending request; return False if it is not pending anymore."""
        ...

    def attach_resume(self, request: NewRequest, *, now: datetime) -> bool:
        """Attach the resume action of ``request`` to the pending request with its id.

        Returns False if that request already has an action, is decided, or has another user, organization or session.
        """
        ...

    def decide(self, decision: NewDecision, *, now: datetime) -> Decision:
        """Store an approval or denial, end the decisions it contradicts or repeats, and answer its request.

        Raises ``RequestUnknown``, or ``DecisionConflict`` if the request was decided meanwhile. The approval of a
        request with a resume action creates its resumption in the same transaction.
        """
        ...

    def revoke(self, decision_id: str, *, actor: str, reason: str, now: datetime) -> Decision:
        """End a decision; raises ``DecisionUnknown``, or ``DecisionConflict`` if it has already ended."""
        ...

    def undo(self, decision_id: str, *, actor: str, reason: str, now: datetime) -> Undone:
        """End a decision, reopen the requests it answered, and restore the decisions it replaced.

        Raises ``DecisionUnknown``, or ``DecisionConflict`` if it has ended or a newer decision prevents it.
        """
        ...

    def end_session(self, session_key: str, *, actor: str, now: datetime) -> int:
        """End the approvals of a session, mark its pending requests, and return the number of ended approvals.

        The end of the session is stored: its later requests are marked too and cannot be approved for the session.
        """
        ...

    def end_expired(self, *, now: datetime) -> int:
        """End expired decisions and return their number."""
        ...

    def rank_waiting(self) -> int:
        """Assess pending requests that an earlier version stored without a risk; return their number."""
        ...

    def age_out(self, *, before: datetime, now: datetime) -> int:
        """Drop pending requests that were last seen before a time and return their number. No decision is made."""
        ...

    def note_use(self, uses: Mapping[str, datetime]) -> None:
        """Store when decisions, by id, were last used.

        This writes no audit record and does not change the generation.
        """
        ...

    # ---- lists

    def request(self, request_id: str) -> StoredRequest:
        """Return one request; raises ``RequestUnknown``."""
        ...

    def requests(self, wanted: RequestFilter, page: PageRequest) -> ResultPage:
        """List requests, the most recently seen first."""
        ...

    def decision(self, decision_id: str) -> Decision:
        """Return one decision; raises ``DecisionUnknown``."""
        ...

    def aftermath(self, decision_id: str) -> Aftermath:
        """Return the effects of a decision at the time it was made; raises ``DecisionUnknown``."""
        ...

    def decisions(self, wanted: DecisionFilter, page: PageRequest) -> ResultPage:
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
        """Append an audit record for an event that does not change requests or decisions."""
        ...

    def audit(self, wanted: AuditFilter, page: PageRequest) -> ResultPage:
        """List audit records, the newest first."""
        ...

    def audit_rows(self, after: int = 0) -> Iterator[AuditRecord]:
        """Yield all records after a sequence number in order, without loading them all."""
        ...

    def audit_head(self) -> tuple[int, str]:
        """Return the sequence and hash that the last record must have; (0, "") for an empty audit log."""
        ...

    # ---- resumptions

    def resume_context(self, request_id: str) -> bytes | None:
        """Return the encrypted context of a request."""
        ...

    def replace_contexts(self, reseal: Callable[[StoredRequest, bytes], bytes | None]) -> int:
        """Replace the encrypted contexts for which ``reseal`` returns a new value; return their number.

        For key rotation.
        """
        ...

    def settle(self) -> None:
        """Wait until contexts sealed with earlier keys are stored, so that ``replace_contexts`` sees them."""
        ...

    def claim_resume(self, *, node: str, lease_until: datetime, now: datetime) -> Resumption | None:
        """Claim the next resumption that is due or whose lease has expired, and count the attempt.

        Resumptions whose approval has ended meanwhile fail permanently and are not returned.
        """
        ...

    def finish_resume(
        self, resume: Resumption, *, node: str, error: str, retry_at: datetime | None, now: datetime
    ) -> bool:
        """Store the result of an attempt: no error means success, an error without ``retry_at`` means final failure.

        After a success the context is removed. Returns False and writes nothing if another node holds the lease or the
        resumption is finished.
        """
        ...

    def resumes(self, *, unfinished: bool, page: PageRequest) -> ResultPage:
        """List resumptions, the newest first."""
        ...


class Bus(Protocol):
    """Notification of other nodes about changes. Events grant nothing; they only make nodes read the store.

    Events may be lost if the receiver learns that some may be missing.
    """

    node: str
    """Unique id of this node."""

    def publish(self, generation: int) -> None:
        """Notify the other nodes. Does not wait, and does not raise if they cannot be reached."""
        ...

    def start(self, heard: Callable[[int | None], None]) -> None:
        """Start listening. ``heard`` gets the generation that another node announced, or None after a gap."""
        ...

    def stop(self) -> None:
        """Stop listening and release all resources. May be called twice."""
        ...

    @property
    def connected(self) -> bool:
        """Whether events are delivered at the moment, as far as this node knows."""
        ...


class GuardState(Protocol):
    """State of the guard around the calling code; the guard's view implements it."""

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


class GuardQuestion(Protocol):
    """Access question of the guard when a policy does not allow an access."""

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


class HostEnvironment(Protocol):
    """Host around the service: the caller, its guard, and a way to leave the guard for the service's work."""

    def caller(self) -> Caller | None:
        """Return the identity of the HTTP request or call that is being served, or None."""
        ...

    def is_guarded(self) -> bool:
        """Return whether a guard applies to the calling code; called before every check."""
        ...

    def place_of(self, path: str) -> str:
        """Return an absolute path with all links resolved; called for unguarded code only."""
        ...

    def guard(self) -> GuardState | None:
        """Return the guard of the calling code; None for host code."""
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
        """Ask on behalf of guarded code through its guard: first the policy, then ``decide`` of the service, unguarded.

        The identity comes from the guard's state, which the calling code cannot change.
        """
        ...

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context in which the service's files and connections are not checked against the caller's policy."""
        ...


class ResumeHandler(Protocol):
    """Handler that resumes an approved action. It runs unguarded and must enter the original requester's identity."""

    def __call__(self, context: Any, *, origin: Requester, subject: Subject, request_id: str) -> object:
        """Run the action. ``request_id`` is the same in every attempt; use it to prevent duplicate effects."""
        ...
