"""Queries about requests, decisions and the audit log, limited to the data that the caller may see."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessAdminRequired, RequestUnknown
from democrai_sandbox.policy import (
    InvalidInputError,
    Operation,
    ResourceType,
    Subject,
    is_at_or_below,
    parse_declaration,
)
from democrai_sandbox.policy.hosts import host_key

from .snapshot import DecisionMatch, covers
from .targets import TargetParser
from .values import (
    AuditFilter,
    DecisionEffect,
    DecisionFilter,
    DecisionReach,
    DecisionScope,
    PageRequest,
    RequestFilter,
    RequestState,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from .caller import Caller
    from .node import AccessNode
    from .protocols import HostEnvironment
    from .risk import RiskAssessment
    from .values import AccessTuple, Aftermath, AuditRecord, Decision, ResultPage, Resumption, StoredRequest


def similar_first(access: AccessTuple, decisions: Iterable[Decision]) -> tuple[Decision, ...]:
    """Return decisions about the same access, then about nearby targets, then of other subjects; each newest first.

    Unrelated ones among ``decisions`` are left out.
    """
    near = [decision for decision in decisions if decision.access == access or _is_near(access, decision.access)]
    near.sort(key=lambda decision: decision.created_at, reverse=True)
    return tuple(sorted(near, key=lambda decision: _distance(access, decision.access)))


def _distance(access: AccessTuple, other: AccessTuple) -> int:
    if other == access:
        return 0
    return 1 if other.subject == access.subject else 2


def _is_near(access: AccessTuple, other: AccessTuple) -> bool:
    """Return whether a decision is about the same target, URL host or folder."""
    if other.resource_type is not access.resource_type:
        return False
    if other.target == access.target:
        return True
    if other.subject != access.subject:
        return False
    if access.resource_type is ResourceType.NETWORK:
        host = _host(access.target)
        return host is not None and host == _host(other.target)
    if access.resource_type is ResourceType.FILESYSTEM:
        folder = access.target.rpartition("/")[0] or "/"
        return is_at_or_below(access.target, other.target) or (folder != "/" and is_at_or_below(other.target, folder))
    return False


def _host(target: str) -> str | None:
    try:
        parsed = parse_declaration(target)
    except InvalidInputError:
        return None
    return host_key(parsed.host) if parsed.host else parsed.socket


_Place = tuple[Subject, ResourceType, Operation]
_AT_ONCE = 500
_LONGEST_ID = 100
_MOST_SIMILAR = 10


class AccessQueries:
    """Queries for administrators; requesters see their own requests."""

    def __init__(self, node: AccessNode, surroundings: HostEnvironment, *, managers: Collection[Subject] = ()) -> None:
        """Create the queries. Guarded code of ``managers`` may decide for a caller that may, but never about itself."""
        self._node = node
        self._surroundings = surroundings
        self._managers = frozenset(managers)

    # ---- lists -------------------------------------------------------------------------------------------------------

    def pending_requests(self, wanted: RequestFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List pending requests, or those in the states that the filter names."""
        self._authorised(None)
        narrowed = wanted or RequestFilter(states=(RequestState.PENDING,))
        with self._surroundings.outside():
            return self._node.store.requests(narrowed, page or PageRequest())

    def queue(self, wanted: RequestFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List groups of pending requests for the same access (``RequestGroup``) by risk, then the newest first."""
        self._authorised(None)
        with self._surroundings.outside():
            return self._node.store.queue(wanted or RequestFilter(), page or PageRequest())

    def counts(self, wanted: RequestFilter | None = None) -> dict[RequestState, int]:
        """Count requests by state, all states unless the filter names some; at most the latest 10,000 of each."""
        self._authorised(None)
        with self._surroundings.outside():
            return self._node.store.counts(wanted or RequestFilter())

    def own_requests(self, page: PageRequest | None = None, *, states: tuple[RequestState, ...] = ()) -> ResultPage:
        """List the requests of the caller."""
        caller = self._present()
        with self._surroundings.outside():
            return self._node.store.requests(
                RequestFilter(states=states, user_id=caller.user_id), page or PageRequest()
            )

    def approvals(self, wanted: DecisionFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List approvals, by default those in force."""
        return self._decisions(wanted, DecisionEffect.APPROVAL, page)

    def denials(self, wanted: DecisionFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List denials, by default those in force."""
        return self._decisions(wanted, DecisionEffect.DENIAL, page)

    def history(self, wanted: AuditFilter | None = None, page: PageRequest | None = None) -> ResultPage:
        """List audit records, the newest first."""
        self._authorised(None)
        with self._surroundings.outside():
            return self._node.store.audit(wanted or AuditFilter(), page or PageRequest())

    # ---- single items and related data
    # -----------------------------------------------------------------------------------

    def request(self, request_id: str) -> StoredRequest:
        """Return one request. For callers that may not decide, only their own requests exist."""
        check_id(request_id, "request_id")
        caller = self._present()
        with self._surroundings.outside():
            found = self._node.store.request(request_id)
        if found.origin.user_id != caller.user_id and (caller.organization_id or not caller.may_decide):
            raise RequestUnknown(f"request {request_id} does not exist")
        return found

    def risk(self, access: AccessTuple) -> RiskAssessment:
        """Return the risk of approving an access, from its target and from earlier decisions about it."""
        self._authorised(None)
        with self._surroundings.outside():
            return self._node.store.assessments(access)[0]

    def risks(self, access: AccessTuple, targets: Sequence[str]) -> tuple[RiskAssessment, ...]:
        """Return the risk of approving the same about each of some targets, all of which cover what was asked for."""
        self._authorised(None)
        with self._surroundings.outside():
            return self._node.store.assessments(access, targets) if targets else ()

    def history_of(self, request_id: str) -> tuple[AuditRecord, ...]:
        """Return the audit records of a request, the newest first; its requester may read them too."""
        self.request(request_id)
        with self._surroundings.outside():
            listing = self._node.store.audit(AuditFilter(request_id=request_id), PageRequest(limit=_AT_ONCE))
        return listing.items

    def resume_of(self, request_id: str) -> Resumption | None:
        """Return the resumption of a request, or None if it was not started."""
        self.request(request_id)
        with self._surroundings.outside():
            return self._node.store.resume_of(request_id)

    def decision(self, decision_id: str) -> Decision:
        """Return one decision."""
        self._authorised(None)
        check_id(decision_id, "decision_id")
        with self._surroundings.outside():
            return self._node.store.decision(decision_id)

    def aftermath(self, decision_id: str) -> Aftermath:
        """Return the effects of a decision: the requests it answered and the decisions it replaced."""
        self._authorised(None)
        check_id(decision_id, "decision_id")
        with self._surroundings.outside():
            return self._node.store.aftermath(decision_id)

    def is_decided(self, access: AccessTuple) -> bool:
        """Tell whether a permanent decision in force is about an access, or about more that covers it."""
        self._authorised(None)
        wanted = DecisionFilter(
            scope=DecisionScope.PERMANENT,
            subject=access.subject,
            resource_type=access.resource_type,
            operation=access.operation,
        )
        found = self._all(self._node.store.decisions, wanted)
        return any(one.access == access or covers(one.access, access) for one in found)

    def reach(
        self, access: AccessTuple, targets: Iterable[str], *, own: str = "", session_key: str = ""
    ) -> tuple[DecisionReach, ...]:
        """Return how many other pending requests a decision about each target would answer.

        ``own`` is the decided request, ``session_key`` its session. Only the latest requests are examined.
        """
        self._authorised(None)
        listing = self._waiting(access.subject, access.resource_type, access.operation)
        others = [request for request in listing.items if request.id != own]
        reader = TargetParser()
        return tuple(
            _reach(DecisionMatch(replace(access, target=target), reader), others, session_key, more=bool(listing.next))
            for target in targets
        )

    def reach_of(self, requests: Collection[StoredRequest]) -> DecisionReach:
        """Return how many other pending requests decisions about all these requests would answer."""
        self._authorised(None)
        own = {request.id for request in requests}
        found: dict[str, StoredRequest] = {}
        theirs: set[str] = set()
        more = False
        reader = TargetParser()
        for place, some in _by_place(requests).items():
            listing = self._waiting(*place)
            more |= bool(listing.next)
            others = [one for one in listing.items if one.id not in own]
            for same in some.values():
                covering = DecisionMatch(same[0].access, reader)
                covered = {one.id: one for one in others if covering.covers(one.access)}
                sessions = {request.origin.session_key for request in same} - {""}
                theirs |= {key for key, one in covered.items() if one.origin.session_key in sessions}
                found |= covered
        return DecisionReach(len(found), len({one.origin.user_id for one in found.values()}), len(theirs), more)

    def versions_of(self, requests: Collection[StoredRequest]) -> dict[str, int]:
        """Return the version of the current state for a decision about each request, by request id."""
        self._authorised(None)
        with self._surroundings.outside():
            found = self._node.store.versions([request.access for request in requests])
        return {request.id: found[request.access.digest] for request in requests}

    def audit_record(self, sequence: int) -> AuditRecord:
        """Return one audit record; raises ``AuditRecordUnknown``."""
        self._authorised(None)
        if type(sequence) is not int:
            raise InvalidInputError.of("expected the sequence number of a record", pointer="/sequence")
        with self._surroundings.outside():
            return self._node.store.audit_record(sequence)

    def alike(self, request: StoredRequest) -> tuple[StoredRequest, ...]:
        """Return pending requests of other users and sessions for the same access, at most 100."""
        self._authorised(None)
        with self._surroundings.outside():
            waiting = self._node.store.waiting_for(request.access)
        return tuple(other for other in waiting if other.id != request.id)

    def similar(self, request: StoredRequest) -> tuple[Decision, ...]:
        """Return similar decisions: of this subject for nearby targets, of other subjects for the same target."""
        self._authorised(None)
        with self._surroundings.outside():
            related = self._node.store.related(request.access)
        others = (decision for decision in related if decision.id != request.decision_id)
        return similar_first(request.access, others)[:_MOST_SIMILAR]

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _waiting(self, subject: Subject, resource_type: ResourceType, operation: Operation) -> ResultPage:
        """Return the latest pending requests of a subject for one resource type and operation."""
        wanted = RequestFilter(
            states=(RequestState.PENDING,), subject=subject, resource_type=resource_type, operation=operation
        )
        with self._surroundings.outside():
            return self._node.store.requests(wanted, PageRequest(limit=_AT_ONCE))

    def _decisions(self, wanted: DecisionFilter | None, effect: DecisionEffect, page: PageRequest | None) -> ResultPage:
        self._authorised(None)
        narrowed = DecisionFilter(effect=effect) if wanted is None else _with_effect(wanted, effect)
        with self._surroundings.outside():
            return self._node.store.decisions(narrowed, page or PageRequest())

    def _present(self) -> Caller:
        """Return the caller, which must be known. Guarded code is accepted only if its subject is a manager."""
        guard = self._surroundings.guard()
        if guard is not None and Subject(guard.subject_kind, guard.subject) not in self._managers:
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
        if guard is not None and about in (Subject(guard.subject_kind, guard.subject), *guard.subject_chain):
            raise ExternalAccessAdminRequired(f"{about} cannot decide about itself")
        if caller.organization_id:
            raise ExternalAccessAdminRequired("the user is scoped to an organization")
        if not caller.may_decide:
            raise ExternalAccessAdminRequired("the user has neither the super role nor the super access level")
        return caller

    def _each(self, listed: Callable[[Any, PageRequest], ResultPage], wanted: object) -> Any:
        """Yield every item of a list, read page by page."""
        after = ""
        while True:
            listing = listed(wanted, PageRequest(limit=_AT_ONCE, after=after))
            yield from listing.items
            if not listing.next:
                return
            after = listing.next

    def _all(self, listed: Callable[[Any, PageRequest], ResultPage], wanted: object) -> list[Any]:
        with self._surroundings.outside():
            return list(self._each(listed, wanted))


def _by_place(requests: Iterable[StoredRequest]) -> dict[_Place, dict[str, list[StoredRequest]]]:
    """Group requests by subject, resource type and operation, and within a group by access."""
    found: dict[_Place, dict[str, list[StoredRequest]]] = {}
    for request in requests:
        access = request.access
        place = access.subject, access.resource_type, access.operation
        found.setdefault(place, {}).setdefault(access.digest, []).append(request)
    return found


def _reach(covering: DecisionMatch, others: Iterable[StoredRequest], session_key: str, *, more: bool) -> DecisionReach:
    covered = [request for request in others if covering.covers(request.access)]
    users = {request.origin.user_id for request in covered}
    theirs = sum(bool(session_key) and request.origin.session_key == session_key for request in covered)
    return DecisionReach(len(covered), len(users), theirs, more)


def check_id(text: object, name: str) -> None:
    """Reject texts that cannot be an id."""
    if type(text) is not str or len(text) > _LONGEST_ID:
        raise InvalidInputError.of(f"expected an id of at most {_LONGEST_ID} characters", pointer=f"/{name}")


def _with_effect(wanted: DecisionFilter, effect: DecisionEffect) -> DecisionFilter:
    if wanted.effect not in (None, effect):
        raise InvalidInputError.of(f"expected the effect {effect}, got {wanted.effect}", pointer="/effect")
    return replace(wanted, effect=effect)
