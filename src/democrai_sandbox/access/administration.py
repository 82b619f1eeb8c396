"""Queries and decisions of administrators: authorization, validation and effects."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, RequestUnknown
from democrai_sandbox.policy import InvalidInputError, ResourceType, normalise_target, read_operation

from . import values, verdicts
from .snapshot import DecisionMatch, by_place, covers, reach
from .targets import TargetParser
from .values import AccessTuple, DecisionEffect, DecisionFilter, DecisionScope, PageRequest, RequestFilter, RequestState
from .verdicts import LONGEST_REASON, AdminVerdict, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from datetime import datetime

    from democrai_sandbox.errors import SandboxError
    from democrai_sandbox.policy import Subject

    from .caller import Caller, HostEnvironment
    from .node import AccessNode
    from .store import SqlStore
    from .values import Decision, ResultPage, StoredRequest
    from .verdicts import RiskAssessment

__all__ = ["LONGEST_REASON", "Administration", "Outcome"]

T = TypeVar("T")

_AT_ONCE = 500
_MOST_SIMILAR = 10
_MOST_NOTES = 20
_LONGEST_LIFETIME = timedelta(days=36525)


class Administration:
    """Queries and decisions of administrators; requesters see their own requests.

    Each decision is one transaction of the store. Queries are limited to the data that the caller may see.
    """

    def __init__(self, node: AccessNode, surroundings: HostEnvironment, *, managers: Collection[Subject] = ()) -> None:
        """Create the queries. Guarded code of ``managers`` may decide for a caller that may, but never about itself."""
        self._node = node
        self._surroundings = surroundings
        self._managers = frozenset(managers)

    # ---- lists -------------------------------------------------------------------------------------------------------

    def pending_requests(self, wanted: RequestFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List pending requests, or those in the states that the filter names."""
        narrowed = wanted or RequestFilter(states=(RequestState.PENDING,))
        return self._read(lambda store: store.requests(narrowed, page or PageRequest()))

    def queue(self, wanted: RequestFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List groups of pending requests for the same access (``RequestGroup``) by risk, then the newest first."""
        return self._read(lambda store: store.queue(wanted or RequestFilter(), page or PageRequest()))

    def counts(self, wanted: RequestFilter | None = None) -> dict[RequestState, int]:
        """Count requests by state, all states unless the filter names some; at most the latest 10,000 of each."""
        return self._read(lambda store: store.counts(wanted or RequestFilter()))

    def own_requests(self, page: PageRequest | None = None, *, states: tuple[RequestState, ...] = ()) -> ResultPage:
        """List the requests of the caller."""
        wanted = RequestFilter(states=states, user_id=self._present().user_id)
        with self._surroundings.outside():
            return self._node.store.requests(wanted, page or PageRequest())

    def approvals(self, wanted: DecisionFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List approvals, by default those in force."""
        return self._decisions(wanted, DecisionEffect.APPROVAL, page)

    def denials(self, wanted: DecisionFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List denials, by default those in force."""
        return self._decisions(wanted, DecisionEffect.DENIAL, page)

    def history(self, wanted: values.AuditFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List audit records, the newest first."""
        return self._read(lambda store: store.audit(wanted or values.AuditFilter(), page or PageRequest()))

    # ---- single items and related data -------------------------------------------------------------------------------

    def request(self, request_id: str) -> StoredRequest:
        """Return one request. For callers that may not decide, only their own requests exist."""
        verdicts.checked_id(request_id, "request_id")
        caller = self._present()
        with self._surroundings.outside():
            found = self._node.store.request(request_id)
        if found.origin.user_id != caller.user_id and (caller.organization_id or not caller.may_decide):
            raise RequestUnknown(f"request {request_id} does not exist")
        return found

    def risk(self, access: AccessTuple) -> RiskAssessment:
        """Return the risk of approving an access, from its target and from earlier decisions about it."""
        return self._read(lambda store: store.assessments(access)[0])

    def risks(self, access: AccessTuple, targets: Sequence[str]) -> tuple[RiskAssessment, ...]:
        """Return the risk of approving the same about each of some targets, all of which cover what was asked for."""
        return self._read(lambda store: store.assessments(access, targets) if targets else ())

    def history_of(self, request_id: str) -> tuple[values.AuditRecord, ...]:
        """Return the audit records of a request, the newest first; its requester may read them too."""
        self.request(request_id)
        with self._surroundings.outside():
            return self._node.store.audit(values.AuditFilter(request_id=request_id), PageRequest(limit=_AT_ONCE)).items

    def resume_of(self, request_id: str) -> values.Resumption | None:
        """Return the resumption of a request, or None if it was not started."""
        self.request(request_id)
        with self._surroundings.outside():
            return self._node.store.resume_of(request_id)

    def decision(self, decision_id: str) -> Decision:
        """Return one decision."""
        return self._read(lambda store: store.decision(verdicts.checked_id(decision_id, "decision_id")))

    def aftermath(self, decision_id: str) -> values.Aftermath:
        """Return the effects of a decision: the requests it answered and the decisions it replaced."""
        return self._read(lambda store: store.aftermath(verdicts.checked_id(decision_id, "decision_id")))

    def is_decided(self, access: AccessTuple) -> bool:
        """Tell whether a permanent decision in force is about an access, or about more that covers it."""
        self._authorised(None)
        wanted = DecisionFilter(scope=DecisionScope.PERMANENT, **_kind_of(access))
        found = self._all(self._node.store.decisions, wanted)
        return any(one.access == access or covers(one.access, access) for one in found)

    def reach(
        self, access: AccessTuple, targets: Iterable[str], *, own: str = "", session_key: str = ""
    ) -> tuple[values.DecisionReach, ...]:
        """Return how many other pending requests a decision about each target would answer.

        ``own`` is the decided request, ``session_key`` its session. Only the latest requests are examined.
        """
        self._authorised(None)
        listing = self._waiting(access)
        others = [request for request in listing.items if request.id != own]
        reader = TargetParser()
        return tuple(
            reach(DecisionMatch(replace(access, target=target), reader), others, session_key, more=bool(listing.next))
            for target in targets
        )

    def reach_of(self, requests: Collection[StoredRequest]) -> values.DecisionReach:
        """Return how many other pending requests decisions about all these requests would answer."""
        self._authorised(None)
        own = {request.id for request in requests}
        found: dict[str, StoredRequest] = {}
        theirs: set[str] = set()
        more = False
        reader = TargetParser()
        for some in by_place(requests):
            listing = self._waiting(some[0][0].access)
            more |= bool(listing.next)
            others = [one for one in listing.items if one.id not in own]
            for same in some:
                covering = DecisionMatch(same[0].access, reader)
                covered = {one.id: one for one in others if covering.covers(one.access)}
                sessions = {request.origin.session_key for request in same} - {""}
                theirs |= {key for key, one in covered.items() if one.origin.session_key in sessions}
                found |= covered
        return values.DecisionReach(len(found), len({one.origin.user_id for one in found.values()}), len(theirs), more)

    def versions_of(self, requests: Collection[StoredRequest]) -> dict[str, int]:
        """Return the version of the current state for a decision about each request, by request id."""
        found = self._read(lambda store: store.versions([request.access for request in requests]))
        return {request.id: found[request.access.digest] for request in requests}

    def audit_record(self, sequence: int) -> values.AuditRecord:
        """Return one audit record; raises ``AuditRecordUnknown``."""
        self._authorised(None)
        if type(sequence) is not int:
            raise InvalidInputError.of("expected the sequence number of a record", pointer="/sequence")
        with self._surroundings.outside():
            return self._node.store.audit_record(sequence)

    def alike(self, request: StoredRequest) -> tuple[StoredRequest, ...]:
        """Return pending requests of other users and sessions for the same access, at most 100."""
        waiting = self._read(lambda store: store.waiting_for(request.access))
        return tuple(other for other in waiting if other.id != request.id)

    def similar(self, request: StoredRequest) -> tuple[Decision, ...]:
        """Return similar decisions: of this subject for nearby targets, of other subjects for the same target."""
        found = self._read(lambda store: store.similar(request.access))
        return tuple(decision for decision in found if decision.id != request.decision_id)[:_MOST_SIMILAR]

    # ---- acts --------------------------------------------------------------------------------------------------------

    # Each act takes ``expected``, the version of the state that the caller saw (see ``versions``). A change since then
    # is a conflict.

    def decide(
        self,
        act: str,
        about: str,
        *,
        target: str | None = None,
        reason: str = "",
        lifetime: timedelta | None = None,
        expected: int | None = None,
    ) -> Outcome:
        """Apply ``session``, ``permanent`` or ``deny`` to a request, or ``revoke`` or ``undo`` to a decision.

        ``about`` is the id of the request or the decision.
        """
        if act == "revoke":
            return Outcome(self.revoke(about, reason=reason))
        if act == "undo":
            undone = self.undo(about, reason=reason)
            return Outcome(undone.decision, kept=undone.kept)
        return self._decided(about, AdminVerdict(*verdicts.request_act(act), target, reason, lifetime, expected))

    def approve_for_session(
        self, request_id: str, *, target: str | None = None, reason: str = "", expected: int | None = None
    ) -> Outcome:
        """Approve a request until its session ends; without a session it stays pending, and the outcome says why."""
        return self.decide("session", request_id, target=target, reason=reason, expected=expected)

    def approve_permanently(
        self,
        request_id: str,
        *,
        target: str | None = None,
        reason: str = "",
        lifetime: timedelta | None = None,
        expected: int | None = None,
    ) -> Outcome:
        """Approve a request permanently or for a time. ``target`` may be broader than the requested target."""
        return self.decide("permanent", request_id, target=target, reason=reason, lifetime=lifetime, expected=expected)

    def deny_external_access(
        self, request_id: str, *, target: str | None = None, reason: str = "", expected: int | None = None
    ) -> Outcome:
        """Deny a request until the denial is revoked or replaced by an approval."""
        return self.decide("deny", request_id, target=target, reason=reason, expected=expected)

    def decide_unasked(
        self,
        subject: Subject,
        *,
        resource_type: str,
        operation: str,
        target: str,
        effect: DecisionEffect,
        reason: str = "",
        lifetime: timedelta | None = None,
        expected: int | None = None,
    ) -> Outcome:
        """Approve or deny permanently an access that has not been requested yet."""
        caller = self._authorised(subject)
        if effect not in tuple(DecisionEffect):
            raise InvalidInputError.of(f"unknown effect {effect!r}; one of: approval, denial", pointer="/effect")
        verdicts.check_pattern(resource_type, target)
        access = self._declared(subject, resource_type, operation, target)
        verdict = AdminVerdict(DecisionEffect(effect), DecisionScope.PERMANENT, target, reason, lifetime, expected)
        return self._store(access, caller, verdict)

    def revoke(self, decision_id: str, *, reason: str = "") -> Decision:
        """End a decision. The access is undecided again."""
        return self._end(self._node.store.revoke, decision_id, reason)

    def undo(self, decision_id: str, *, reason: str = "") -> values.Undone:
        """Reverse a decision, except for requests whose action has already resumed; the result lists them."""
        return self._end(self._node.store.undo, decision_id, reason)

    def decide_many(
        self,
        request_ids: Iterable[str],
        act: str,
        *,
        reason: str = "",
        expected: Mapping[str, int] | None = None,
        bulk: str = "",
    ) -> tuple[tuple[str, Outcome | SandboxError], ...]:
        """Apply one act (``session``, ``permanent`` or ``deny``) to many requests and return their outcomes in order.

        Each request is decided separately: an error or conflict is returned as its outcome and does not stop the
        others. ``expected`` maps request ids to the versions that were shown. ``bulk`` is a label that groups the
        decisions in the audit log.
        """
        self._authorised(None)
        verdict = AdminVerdict(*verdicts.request_act(act), None, verdicts.checked_reason(reason), bulk=bulk)

        def decide(request_id: str, version: int | None) -> Outcome:
            return self._decided(request_id, replace(verdict, expected=version))

        return verdicts.decide_each(request_ids, decide, self.request, expected or {})

    def note(self, request_id: str, text: str) -> values.AuditRecord:
        """Add a note to a request: a remark, a question to the requester, or the requester's reply.

        Notes stay in the audit log forever, so callers that may not decide get a limited number of notes per request.
        """
        request = self.request(request_id)
        caller = self._present()
        if type(text) is not str or not text.strip() or len(text) > LONGEST_REASON:
            message = f"expected a text of 1 to {LONGEST_REASON} characters"
            raise InvalidInputError.of(message, pointer="/text")
        with self._surroundings.outside():
            noted = values.AuditFilter((values.AuditAction.NOTED,), actor=caller.user_id, request_id=request.id)
            most = PageRequest(limit=_MOST_NOTES)
            if not caller.may_decide and len(self._node.store.audit(noted, most).items) >= _MOST_NOTES:
                raise DecisionConflict(f"request {request.id} already has the maximum of {_MOST_NOTES} notes by you")
            return self._node.store.record(
                values.AuditAction.NOTED,
                actor=caller.user_id,
                now=self._node.clock(),
                access=request.access,
                request_id=request.id,
                after={"text": text},
            )

    def end_session(self, session_key: str) -> int:
        """End all approvals of a session and return their number. Only the host calls this."""
        if self._surroundings.is_guarded():
            raise ExternalAccessAdminRequired("guarded code cannot end sessions")
        ended = self._node.store.end_session(session_key, actor="system", now=self._node.clock())
        self._node.announce()
        return ended

    def tidy(self, *, pending_lifetime: timedelta) -> None:
        """End expired decisions and drop requests that were not answered in time. The host calls this periodically."""
        if self._surroundings.is_guarded():
            raise ExternalAccessAdminRequired("guarded code cannot remove expired decisions")
        if pending_lifetime <= timedelta(0):
            raise InvalidInputError.of("pending_lifetime must be greater than zero", pointer="/pending_lifetime")
        now = self._node.clock()
        ended = self._node.store.end_expired(now=now)
        while self._node.store.rank_waiting():
            pass  # in batches, so that other transactions can run in between
        self._node.store.age_out(before=now - pending_lifetime, now=now)
        if ended:
            self._node.announce()

    def versions(self, access: AccessTuple, targets: Iterable[str] = ()) -> tuple[int, ...]:
        """Return the version of the current state for a decision about each target, or about the access itself."""
        self._authorised(None)
        about = [access, *(self._considered(access, target) for target in targets)]
        found = self._read(lambda store: store.versions(about))
        own = found[access.digest]
        return tuple(max(own, found[other.digest]) for other in (about[1:] or about))

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _read(self, work: Callable[[SqlStore], T]) -> T:
        """Return what a caller that may decide reads from the store, outside its guard."""
        self._authorised(None)
        with self._surroundings.outside():
            return work(self._node.store)

    def _end(self, act: Callable[..., T], decision_id: str, reason: str) -> T:
        """End a decision with a method of the store, and announce it."""
        caller = self._authorised(self.decision(decision_id).access.subject)
        with self._surroundings.outside():
            ended = act(
                decision_id, actor=caller.user_id, reason=verdicts.checked_reason(reason), now=self._node.clock()
            )
            self._node.announce()
        return ended

    def _waiting(self, access: AccessTuple) -> ResultPage:
        """Return the latest pending requests of the subject for the same resource type and operation."""
        wanted = RequestFilter(states=(RequestState.PENDING,), **_kind_of(access))
        with self._surroundings.outside():
            return self._node.store.requests(wanted, PageRequest(limit=_AT_ONCE))

    def _decisions(self, wanted: DecisionFilter | None, effect: DecisionEffect, page: PageRequest | None) -> ResultPage:
        self._authorised(None)
        wanted = wanted or DecisionFilter()
        if wanted.effect not in (None, effect):
            raise InvalidInputError.of(f"expected the effect {effect}, got {wanted.effect}", pointer="/effect")
        narrowed = replace(wanted, effect=effect)
        return self._read(lambda store: store.decisions(narrowed, page or PageRequest()))

    def _present(self) -> Caller:
        """Return the caller, which must be known. Guarded code is accepted only if its subject is a manager."""
        guard = self._surroundings.guard()
        if guard is not None and guard.subject not in self._managers:
            # The innermost subject counts: code that a manager calls is not a manager.
            raise ExternalAccessAdminRequired("guarded code cannot decide unless the host made it a manager")
        caller = self._surroundings.caller()
        if caller is None or not caller.user_id:
            raise ExternalAccessAdminRequired("the runtime has no current user")
        return caller

    def _authorised(self, about: Subject | None) -> Caller:
        """Return the caller if its request context permits it to decide about a subject."""
        caller = self._present()
        guard = self._surroundings.guard()
        if guard is not None and about in (guard.subject, *guard.chain):
            raise ExternalAccessAdminRequired(f"{about} cannot decide about itself")
        if caller.organization_id:
            raise ExternalAccessAdminRequired("the user is scoped to an organization")
        if not caller.may_decide:
            raise ExternalAccessAdminRequired("the user has neither the super role nor the super access level")
        return caller

    def _all(self, listed: Callable[[Any, PageRequest], ResultPage], wanted: object) -> list[Any]:
        """Return every item of a list, read page by page."""
        found: list[Any] = []
        after = ""
        with self._surroundings.outside():
            while True:
                listing = listed(wanted, PageRequest(limit=_AT_ONCE, after=after))
                found += listing.items
                if not listing.next:
                    return found
                after = listing.next

    def _decided(self, request_id: str, verdict: AdminVerdict) -> Outcome:
        request = self._read(lambda store: store.request(verdicts.checked_id(request_id, "request_id")))
        caller = self._authorised(request.access.subject)
        session = request.origin.session_key
        for_session = verdict.scope is DecisionScope.SESSION and request.state is RequestState.PENDING
        if for_session and (not session or request.session_ended):
            what = "the session of this request has ended" if session else "this request was made without a session"
            return Outcome(None, f"{what}; approve it permanently or deny it")
        return self._answer(request, caller, verdict)

    def _answer(self, request: StoredRequest, caller: Caller, verdict: AdminVerdict) -> Outcome:
        access = request.access
        if verdict.target is not None:
            access = self._about(access, verdict.target)
            if not covers(access, request.access):
                verdicts.check_pattern(access.resource_type, verdict.target)
                message = f"{access.target} does not cover the requested target {request.access.target}"
                raise InvalidInputError.of(message, pointer="/target")
        return self._store(access, caller, verdict, request)

    def _store(
        self, access: AccessTuple, caller: Caller, verdict: AdminVerdict, request: StoredRequest | None = None
    ) -> Outcome:
        if verdict.effect is DecisionEffect.APPROVAL:
            self._check_no_denial(access)
        session = request.origin.session_key if request and verdict.scope is DecisionScope.SESSION else ""
        own = request.id if request else ""
        about = (request.access, access) if request else (access,)
        new = values.NewDecision(
            access,
            verdict.effect,
            verdict.scope,
            caller.user_id,
            session,
            verdicts.checked_reason(verdict.reason),
            own,
            self._expiry(verdict.lifetime),
            self._covered(access, session, own),
            verdict.bulk,
            verdicts.expected_state(about, verdict.expected),
        )
        with self._surroundings.outside():
            decision = self._node.store.decide(new, now=self._node.clock())
            self._node.announce()
        return Outcome(decision)

    def _about(self, access: AccessTuple, target: str) -> AccessTuple:
        """Return the tuple with another target; the original target is not normalized again."""
        if target == access.target:
            return access
        return self._declared(access.subject, access.resource_type, access.operation, target)

    def _considered(self, access: AccessTuple, target: str) -> AccessTuple:
        """Return the tuple with another target, unnormalized if a decision about it is not possible."""
        try:
            return self._about(access, target)
        except (InvalidInputError, UnicodeError):
            return replace(access, target=target)

    def _declared(self, subject: Subject, resource_type: str, operation: str, target: str) -> AccessTuple:
        """Return the normalized tuple for a decision. Links in a path are resolved, as they are for every check."""
        kind, act = read_operation(resource_type, operation)
        normal = normalise_target(kind, target)
        if kind is ResourceType.FILESYSTEM:
            with self._surroundings.outside():
                normal = self._surroundings.place_of(normal)
        return AccessTuple(subject, kind, act, normal)

    def _check_no_denial(self, access: AccessTuple) -> None:
        """Refuse an approval that would have no effect because a broader denial exists."""
        wanted = DecisionFilter(effect=DecisionEffect.DENIAL, **_kind_of(access))
        now = self._node.clock()
        for denial in self._all(self._node.store.decisions, wanted):
            over = denial.expires_at is not None and denial.expires_at <= now
            if not over and denial.access != access and covers(denial.access, access):
                raise DecisionConflict(f"{denial.access.target} is denied (decision {denial.id}); revoke that first")

    def _covered(self, access: AccessTuple, session: str, own: str) -> tuple[str, ...]:
        """Return the other pending requests, optionally of one session, that a decision answers."""
        wanted = RequestFilter(states=(RequestState.PENDING,), session_key=session, **_kind_of(access))
        covering = DecisionMatch(access)
        pending = self._all(self._node.store.requests, wanted)
        return tuple(found.id for found in pending if found.id != own and covering.covers(found.access))

    def _expiry(self, lifetime: timedelta | None) -> datetime | None:
        if lifetime is None:
            return None
        if type(lifetime) is not timedelta or lifetime > _LONGEST_LIFETIME:
            raise InvalidInputError.of("expected a timedelta of at most 100 years", pointer="/lifetime")
        if lifetime <= timedelta(0):
            raise InvalidInputError.of("lifetime must be greater than zero", pointer="/lifetime")
        return self._node.clock() + lifetime


def _kind_of(access: AccessTuple) -> dict[str, Any]:
    """Return the filter for the same subject, resource type and operation."""
    return {"subject": access.subject, "resource_type": access.resource_type, "operation": access.operation}
