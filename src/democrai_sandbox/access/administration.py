"""Decisions of administrators: authorization, validation and effects.

Each operation is one transaction of the store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, SandboxError, StoreUnavailable
from democrai_sandbox.policy import InvalidInputError, ResourceType, Subject
from democrai_sandbox.policy.paths import pattern_problem

from .queries import AccessQueries, check_id
from .snapshot import DecisionMatch, covers
from .targets import read_declared
from .values import (
    AccessTuple,
    AuditAction,
    AuditFilter,
    Decision,
    DecisionEffect,
    DecisionFilter,
    DecisionScope,
    Expected,
    NewDecision,
    PageRequest,
    RequestFilter,
    RequestState,
    StoredRequest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from .caller import Caller
    from .values import AuditRecord, Undone

MOST_AT_ONCE = 500
"""Maximum number of requests per bulk decision, so that an administrator can review them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an attempt to decide."""

    decision: Decision | None
    skipped: str = ""
    """Reason why nothing was stored, if that is not an error."""
    kept: tuple[str, ...] = ()
    """Requests that stay answered after an undo."""


def decide_each(
    request_ids: Iterable[str],
    decide: Callable[[str, int | None], Outcome],
    request_of: Callable[[str], StoredRequest],
    expected: Mapping[str, int],
) -> tuple[tuple[str, Outcome | SandboxError], ...]:
    """Decide the requests one by one and return their outcomes. A missing right to decide aborts the loop."""
    made: list[Decision] = []
    found: list[tuple[str, Outcome | SandboxError]] = []
    own: dict[str, int] = {}
    away: StoreUnavailable | None = None
    for request_id in _checked(request_ids):
        if away is not None:
            found.append((request_id, away))  # waiting for the store again for each request would take minutes
            continue
        try:
            version = expected.get(request_id)
            if version is not None and own:
                # A change by an earlier decision of this loop is not a conflict with another administrator.
                version = max(version, own.get(request_of(request_id).access.digest, 0))
            outcome: Outcome | SandboxError = decide(request_id, version)
        except ExternalAccessAdminRequired:
            raise
        except DecisionConflict as error:
            outcome = _answered_before(request_of(request_id), made) or error
        except StoreUnavailable as error:
            outcome = away = error
        except SandboxError as error:
            outcome = error
        if isinstance(outcome, Outcome) and outcome.decision is not None:
            made.append(outcome.decision)
            own[outcome.decision.access.digest] = outcome.decision.generation
        found.append((request_id, outcome))
    return tuple(found)


def _answered_before(request: StoredRequest, made: list[Decision]) -> Outcome | None:
    """Return the decision of this loop that also answered this request, so that it is not reported as a conflict."""
    return next((Outcome(decision) for decision in made if decision.id == request.decision_id), None)


def _checked(request_ids: Iterable[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(request_ids))
    if not unique:
        raise InvalidInputError.of("name at least one request", pointer="/request_ids")
    if len(unique) > MOST_AT_ONCE:
        message = f"expected at most {MOST_AT_ONCE} requests, got {len(unique)}"
        raise InvalidInputError.of(message, pointer="/request_ids")
    return unique


LONGEST_REASON = 2000
_MOST_NOTES = 20
_LONGEST_LIFETIME = timedelta(days=36525)


@dataclass(frozen=True, slots=True)
class _AdminVerdict:
    """Decision that an administrator makes about a request."""

    effect: DecisionEffect
    scope: DecisionScope
    target: str | None
    reason: str
    lifetime: timedelta | None = None
    expected: int | None = None
    bulk: str = ""


_ACTS = MappingProxyType(
    {
        "session": (DecisionEffect.APPROVAL, DecisionScope.SESSION),
        "permanent": (DecisionEffect.APPROVAL, DecisionScope.PERMANENT),
        "deny": (DecisionEffect.DENIAL, DecisionScope.PERMANENT),
    }
)
"""Acts about requests."""


class Administration(AccessQueries):
    """Approve, deny and revoke for callers that may decide; reading is inherited."""

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
        return self._decided(about, _AdminVerdict(*_request_act(act), target, reason, lifetime, expected))

    def approve_for_session(
        self, request_id: str, *, target: str | None = None, reason: str = "", expected: int | None = None
    ) -> Outcome:
        """Approve a request until its session ends.

        If the request has no session or the session has ended, nothing is stored. The request stays pending and the
        outcome says why.
        """
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
        _check_pattern(resource_type, target)
        access = self._declared(subject, resource_type, operation, target)
        if effect == DecisionEffect.APPROVAL:
            self._check_no_denial(access)
        new = NewDecision(
            access,
            DecisionEffect(effect),
            DecisionScope.PERMANENT,
            caller.user_id,
            reason=_reason(reason),
            expires_at=self._expiry(lifetime),
            also_answers=self._covered(access, "", ""),
            expected=_expected((access,), expected),
        )
        return self._store(new)

    def revoke(self, decision_id: str, *, reason: str = "") -> Decision:
        """End a decision. The access is undecided again."""
        self._authorised(None)
        check_id(decision_id, "decision_id")
        with self._surroundings.outside():
            about = self._node.store.decision(decision_id).access.subject
        caller = self._authorised(about)
        with self._surroundings.outside():
            decision = self._node.store.revoke(
                decision_id, actor=caller.user_id, reason=_reason(reason), now=self._node.clock()
            )
            self._node.announce()
        return decision

    def undo(self, decision_id: str, *, reason: str = "") -> Undone:
        """Reverse a decision: end it, reopen the requests it answered, and restore the decision it replaced.

        Requests whose action has already resumed stay answered; the result lists them.
        """
        self._authorised(None)
        about = self.decision(decision_id).access.subject
        caller = self._authorised(about)
        with self._surroundings.outside():
            undone = self._node.store.undo(
                decision_id, actor=caller.user_id, reason=_reason(reason), now=self._node.clock()
            )
            self._node.announce()
        return undone

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
        verdict = _AdminVerdict(*_request_act(act), None, _reason(reason), bulk=bulk)

        def decide(request_id: str, version: int | None) -> Outcome:
            return self._decided(request_id, replace(verdict, expected=version))

        return decide_each(request_ids, decide, self.request, expected or {})

    def note(self, request_id: str, text: str) -> AuditRecord:
        """Add a note to a request: a remark, a question to the requester, or the requester's reply.

        Notes stay in the audit log forever, so callers that may not decide get a limited number of notes per request.
        """
        request = self.request(request_id)
        caller = self._present()
        if type(text) is not str or not text.strip() or len(text) > LONGEST_REASON:
            message = f"expected a text of 1 to {LONGEST_REASON} characters"
            raise InvalidInputError.of(message, pointer="/text")
        with self._surroundings.outside():
            if not caller.may_decide:
                self._check_notes(request.id, caller)
            return self._node.store.record(
                AuditAction.NOTED,
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
        if not session_key:
            raise InvalidInputError.of("the session key is empty", pointer="/session_key")
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
        """Return the version of the current state for a decision about each target, or about the access itself.

        A caller that shows a state and decides later passes the version back as ``expected``.
        """
        self._authorised(None)
        about = [access, *(self._considered(access, target) for target in targets)]
        with self._surroundings.outside():
            found = self._node.store.versions(about)
        own = found[access.digest]
        return tuple(max(own, found[other.digest]) for other in (about[1:] or about))

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _asked(self, request_id: str) -> tuple[StoredRequest, Caller]:
        self._authorised(None)
        check_id(request_id, "request_id")
        with self._surroundings.outside():
            request = self._node.store.request(request_id)
        return request, self._authorised(request.access.subject)

    def _decided(self, request_id: str, verdict: _AdminVerdict) -> Outcome:
        request, caller = self._asked(request_id)
        session = request.origin.session_key
        for_session = verdict.scope is DecisionScope.SESSION and request.state is RequestState.PENDING
        if for_session and (not session or request.session_ended):
            what = "the session of this request has ended" if session else "this request was made without a session"
            return Outcome(None, f"{what}; approve it permanently or deny it")
        return self._answer(request, caller, verdict)

    def _answer(self, request: StoredRequest, caller: Caller, verdict: _AdminVerdict) -> Outcome:
        access = request.access
        if verdict.target is not None:
            access = self._about(access, verdict.target)
            if not covers(access, request.access):
                _check_pattern(access.resource_type, verdict.target)
                message = f"{access.target} does not cover the requested target {request.access.target}"
                raise InvalidInputError.of(message, pointer="/target")
        if verdict.effect is DecisionEffect.APPROVAL:
            self._check_no_denial(access)
        session = request.origin.session_key if verdict.scope is DecisionScope.SESSION else ""
        new = NewDecision(
            access,
            verdict.effect,
            verdict.scope,
            caller.user_id,
            session,
            _reason(verdict.reason),
            request.id,
            self._expiry(verdict.lifetime),
            self._covered(access, session, request.id),
            verdict.bulk,
            _expected((request.access, access), verdict.expected),
        )
        return self._store(new)

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

    def _check_notes(self, request_id: str, caller: Caller) -> None:
        theirs = AuditFilter(actions=(AuditAction.NOTED,), actor=caller.user_id, request_id=request_id)
        if len(self._node.store.audit(theirs, PageRequest(limit=_MOST_NOTES)).items) >= _MOST_NOTES:
            raise DecisionConflict(f"request {request_id} already has the maximum of {_MOST_NOTES} notes by you")

    def _declared(self, subject: Subject, resource_type: str, operation: str, target: str) -> AccessTuple:
        """Return the normalized tuple for a decision. Links in a path are resolved, as they are for every check."""
        kind, act, normal = read_declared(resource_type, operation, target)
        if kind is ResourceType.FILESYSTEM:
            with self._surroundings.outside():
                normal = self._surroundings.place_of(normal)
        return AccessTuple(subject, kind, act, normal)

    def _store(self, new: NewDecision) -> Outcome:
        with self._surroundings.outside():
            decision = self._node.store.decide(new, now=self._node.clock())
            self._node.announce()
        return Outcome(decision)

    def _check_no_denial(self, access: AccessTuple) -> None:
        """Refuse an approval that would have no effect because a broader denial exists."""
        wanted = DecisionFilter(
            effect=DecisionEffect.DENIAL,
            subject=access.subject,
            resource_type=access.resource_type,
            operation=access.operation,
        )
        now = self._node.clock()
        for denial in self._all(self._node.store.decisions, wanted):
            over = denial.expires_at is not None and denial.expires_at <= now
            if not over and denial.access != access and covers(denial.access, access):
                raise DecisionConflict(f"{denial.access.target} is denied (decision {denial.id}); revoke that first")

    def _covered(self, access: AccessTuple, session: str, own: str) -> tuple[str, ...]:
        """Return the other pending requests, optionally of one session, that a decision answers."""
        wanted = RequestFilter(
            states=(RequestState.PENDING,),
            subject=access.subject,
            resource_type=access.resource_type,
            operation=access.operation,
            session_key=session,
        )
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


def _request_act(act: str) -> tuple[DecisionEffect, DecisionScope]:
    if act not in _ACTS:
        raise InvalidInputError.of(f"unknown act {act!r}; one of: session, permanent, deny", pointer="/act")
    return _ACTS[act]


def _check_pattern(resource_type: str, target: str) -> None:
    """Refuse a path that contains pattern characters, because a decision matches paths literally."""
    found = pattern_problem(target, "/target") if resource_type == ResourceType.FILESYSTEM else None
    if found is not None:
        raise InvalidInputError([found])


def _expected(about: tuple[AccessTuple, ...], version: int | None) -> Expected | None:
    if version is None:
        return None
    if type(version) is not int or version < 0:
        raise InvalidInputError.of("expected a version number (an integer of at least 0)", pointer="/expected")
    return Expected(about, version)


def _reason(text: str) -> str:
    if type(text) is not str or len(text) > LONGEST_REASON:
        raise InvalidInputError.of(f"expected a text of at most {LONGEST_REASON} characters", pointer="/reason")
    return text
