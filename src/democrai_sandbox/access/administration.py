"""Deciding: who may, about what, and what follows. Each act is one transaction of the store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired
from democrai_sandbox.policy import InvalidInputError, ResourceType, Subject
from democrai_sandbox.policy.patterns import pattern_problem

from .coverage import Covering, covers
from .outcomes import Outcome, decide_each
from .reading import Reading, check_id
from .targets import read_declared
from .values import (
    AccessTuple,
    AuditAction,
    AuditFilter,
    Decision,
    DecisionFilter,
    Effect,
    Expected,
    NewDecision,
    Page,
    Request,
    RequestFilter,
    RequestState,
    Scope,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from democrai_sandbox.policy import SandboxError

    from .identity import Caller
    from .values import AuditRecord, Undone

LONGEST_REASON = 2000
_MOST_NOTES = 20
_LONGEST_LIFETIME = timedelta(days=36525)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What somebody says about a request."""

    effect: Effect
    scope: Scope
    target: str | None
    reason: str
    lifetime: timedelta | None = None
    expected: int | None = None
    bulk: str = ""


_ACTS = MappingProxyType(
    {
        "session": (Effect.APPROVAL, Scope.SESSION),
        "permanent": (Effect.APPROVAL, Scope.PERMANENT),
        "deny": (Effect.DENIAL, Scope.PERMANENT),
    }
)
"""What can be done to many requests at once."""


class Administration(Reading):
    """Approves, denies and revokes for those who may; what there is to read comes with it."""

    # ---- acts --------------------------------------------------------------------------------------------------------

    # Each takes as ``expected`` the version of what was shown, see ``versions``: a change since is a conflict.

    def approve_for_session(
        self, request_id: str, *, target: str | None = None, reason: str = "", expected: int | None = None
    ) -> Outcome:
        """Allow what a request asks for until its session ends.

        Without a session, or when it has ended, nothing is stored: the request stays pending, and the outcome says why.
        """
        return self._decided(request_id, _Verdict(Effect.APPROVAL, Scope.SESSION, target, reason, expected=expected))

    def approve_permanently(
        self,
        request_id: str,
        *,
        target: str | None = None,
        reason: str = "",
        lifetime: timedelta | None = None,
        expected: int | None = None,
    ) -> Outcome:
        """Allow what a request asks for from now on, or for a time; ``target`` may be broader than what was asked."""
        verdict = _Verdict(Effect.APPROVAL, Scope.PERMANENT, target, reason, lifetime, expected)
        return self._decided(request_id, verdict)

    def deny_external_access(
        self, request_id: str, *, target: str | None = None, reason: str = "", expected: int | None = None
    ) -> Outcome:
        """Keep what a request asks for disabled, until somebody revokes that or approves it."""
        return self._decided(request_id, _Verdict(Effect.DENIAL, Scope.PERMANENT, target, reason, expected=expected))

    def decide_unasked(
        self,
        subject: Subject,
        *,
        resource_type: str,
        operation: str,
        target: str,
        effect: Effect,
        reason: str = "",
        lifetime: timedelta | None = None,
        expected: int | None = None,
    ) -> Outcome:
        """Approve or deny permanently what nobody has asked for yet."""
        caller = self._authorised(subject)
        if effect not in tuple(Effect):
            raise InvalidInputError.of(f"unknown effect {effect!r}; one of: approval, denial", pointer="/effect")
        _check_pattern(resource_type, target)
        access = self._declared(subject, resource_type, operation, target)
        if effect == Effect.APPROVAL:
            self._check_no_denial(access)
        new = NewDecision(
            access,
            Effect(effect),
            Scope.PERMANENT,
            caller.user_id,
            reason=_reason(reason),
            expires_at=self._expiry(lifetime),
            also_answers=self._covered(access, "", ""),
            expected=_expected((access,), expected),
        )
        return self._store(new)

    def revoke(self, decision_id: str, *, reason: str = "") -> Decision:
        """End a decision: what it allowed or denied is undecided again."""
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
        """Reverse a decision: it ends, what it answered waits again, and what it replaced is in force again.

        Requests whose action has resumed already stay answered; the outcome names them.
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
        """Do one act (``session``, ``permanent`` or ``deny``) to many requests; return what each came to, in order.

        Each is decided by itself: what is wrong with one, or was decided meanwhile, is told and stops no other.
        ``expected`` are versions by request, of those that were shown. ``bulk`` is a text by which the audit names
        them together.
        """
        self._authorised(None)
        if act not in _ACTS:
            raise InvalidInputError.of(f"unknown act {act!r}; one of: session, permanent, deny", pointer="/act")
        verdict = _Verdict(*_ACTS[act], None, _reason(reason), bulk=bulk)

        def decide(request_id: str, version: int | None) -> Outcome:
            return self._decided(request_id, replace(verdict, expected=version))

        return decide_each(request_ids, decide, self.request, expected or {})

    def note(self, request_id: str, text: str) -> AuditRecord:
        """Write something down about a request: a remark, a question to who asked, or their answer to it.

        The audit keeps it for good, so those who may not decide have a few notes to each request of their own.
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
        """End all approvals of a session; return how many. The host calls this: a session is not ended by a person."""
        if self._surroundings.is_guarded():
            raise ExternalAccessAdminRequired("guarded code does not end sessions")
        if not session_key:
            raise InvalidInputError.of("the session key is empty", pointer="/session_key")
        ended = self._node.store.end_session(session_key, actor="system", now=self._node.clock())
        self._node.announce()
        return ended

    def tidy(self, *, pending_lifetime: timedelta) -> None:
        """End what has expired and give up requests that nobody answered. The host calls this now and then."""
        if self._surroundings.is_guarded():
            raise ExternalAccessAdminRequired("guarded code does not tidy")
        if pending_lifetime <= timedelta(0):
            raise InvalidInputError.of("requests wait for longer than no time", pointer="/pending_lifetime")
        now = self._node.clock()
        ended = self._node.store.end_expired(now=now)
        while self._node.store.rank_waiting():
            pass  # some at a time, so that others have their turn in between
        self._node.store.age_out(before=now - pending_lifetime, now=now)
        if ended:
            self._node.announce()

    def versions(self, access: AccessTuple, targets: Iterable[str] = ()) -> tuple[int, ...]:
        """Return the version of the present state, for a decision about each target; for the own one without any.

        A caller that shows a state and decides later gives the version back, as ``expected``.
        """
        self._authorised(None)
        about = [access, *(self._considered(access, target) for target in targets)]
        with self._surroundings.outside():
            found = self._node.store.versions(about)
        own = found[access.digest]
        return tuple(max(own, found[other.digest]) for other in (about[1:] or about))

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _asked(self, request_id: str) -> tuple[Request, Caller]:
        self._authorised(None)
        check_id(request_id, "request_id")
        with self._surroundings.outside():
            request = self._node.store.request(request_id)
        return request, self._authorised(request.access.subject)

    def _decided(self, request_id: str, verdict: _Verdict) -> Outcome:
        request, caller = self._asked(request_id)
        session = request.origin.session_key
        for_session = verdict.scope is Scope.SESSION and request.state is RequestState.PENDING
        if for_session and (not session or request.session_ended):
            what = "the session of this request has ended" if session else "this request was made without a session"
            return Outcome(None, f"{what}: it can be approved permanently, or denied")
        return self._answer(request, caller, verdict)

    def _answer(self, request: Request, caller: Caller, verdict: _Verdict) -> Outcome:
        access = request.access
        if verdict.target is not None:
            access = self._about(access, verdict.target)
            if not covers(access, request.access):
                _check_pattern(access.resource_type, verdict.target)
                message = f"{access.target} does not cover {request.access.target}, which was asked for"
                raise InvalidInputError.of(message, pointer="/target")
        if verdict.effect is Effect.APPROVAL:
            self._check_no_denial(access)
        session = request.origin.session_key if verdict.scope is Scope.SESSION else ""
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
        """Return the tuple with another target; its own stays as it is."""
        if target == access.target:
            return access
        return self._declared(access.subject, access.resource_type, access.operation, target)

    def _considered(self, access: AccessTuple, target: str) -> AccessTuple:
        """Return the tuple with another target; one that cannot be decided about stays as it is."""
        try:
            return self._about(access, target)
        except (InvalidInputError, UnicodeError):
            return replace(access, target=target)

    def _check_notes(self, request_id: str, caller: Caller) -> None:
        theirs = AuditFilter(actions=(AuditAction.NOTED,), actor=caller.user_id, request_id=request_id)
        if len(self._node.store.audit(theirs, Page(limit=_MOST_NOTES)).items) >= _MOST_NOTES:
            raise DecisionConflict(f"request {request_id} has {_MOST_NOTES} notes of yours already")

    def _declared(self, subject: Subject, resource_type: str, operation: str, target: str) -> AccessTuple:
        """Return what somebody decides about. A path is the place where it leads, as it is for every check."""
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
        """Refuse an approval that a broader denial would keep from having any effect."""
        wanted = DecisionFilter(
            effect=Effect.DENIAL,
            subject=access.subject,
            resource_type=access.resource_type,
            operation=access.operation,
        )
        now = self._node.clock()
        for denial in self._all(self._node.store.decisions, wanted):
            over = denial.expires_at is not None and denial.expires_at <= now
            if not over and denial.access != access and covers(denial.access, access):
                raise DecisionConflict(f"{denial.access.target} is denied (decision {denial.id}): revoke that first")

    def _covered(self, access: AccessTuple, session: str, own: str) -> tuple[str, ...]:
        """Return the pending requests, of one session if need be, that a decision answers besides its own."""
        wanted = RequestFilter(
            states=(RequestState.PENDING,),
            subject=access.subject,
            resource_type=access.resource_type,
            operation=access.operation,
            session_key=session,
        )
        covering = Covering(access)
        pending = self._all(self._node.store.requests, wanted)
        return tuple(found.id for found in pending if found.id != own and covering.covers(found.access))

    def _expiry(self, lifetime: timedelta | None) -> datetime | None:
        if lifetime is None:
            return None
        if type(lifetime) is not timedelta or lifetime > _LONGEST_LIFETIME:
            raise InvalidInputError.of("expected a time of at most a hundred years", pointer="/lifetime")
        if lifetime <= timedelta(0):
            raise InvalidInputError.of("an approval cannot expire before it is made", pointer="/lifetime")
        return self._node.clock() + lifetime


def _check_pattern(resource_type: str, target: str) -> None:
    """Refuse a path that looks like a pattern, which a decision about it would not be."""
    found = pattern_problem(target, "/target") if resource_type == ResourceType.FILESYSTEM else None
    if found is not None:
        raise InvalidInputError([found])


def _expected(about: tuple[AccessTuple, ...], version: int | None) -> Expected | None:
    if version is None:
        return None
    if type(version) is not int or version < 0:
        raise InvalidInputError.of("expected the version of a state", pointer="/expected")
    return Expected(about, version)


def _reason(text: str) -> str:
    if type(text) is not str or len(text) > LONGEST_REASON:
        raise InvalidInputError.of(f"expected a text of at most {LONGEST_REASON} characters", pointer="/reason")
    return text
