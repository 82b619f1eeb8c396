"""Access checks: answer from the snapshot, count the results, and file requests for undecided access."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from itertools import count
from time import monotonic, time_ns
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.policy import AccessDecision, DecisionCode, InvalidInputError, ResourceType, Subject, SubjectKind
from democrai_sandbox.policy.operations import EXTERNAL_URL_LOCKED
from democrai_sandbox.policy.text import invisible_character

from .caller import Caller, HostEnvironment, UnguardedHost, identity_text
from .resumptions import encode_context
from .snapshot import DENIED, PERMANENT_APPROVAL, SESSION_APPROVAL
from .targets import RequestedTarget, TargetParser
from .values import AccessTuple, AuditAction, NewRequest, Requester, new_id

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .node import AccessNode

_log = logging.getLogger("democrai_sandbox.access")
_FAILURES_KEPT = 100
_LONGEST = 1000


class DeferredRecords:
    """Used decisions and failed checks, kept until a chore of the node writes them, so that a check does not wait."""

    def __init__(self, node: AccessNode) -> None:
        self._node = node
        self._uses: dict[str, int] = {}
        self._failures: deque[dict[str, Any]] = deque(maxlen=_FAILURES_KEPT)
        self._lock = threading.Lock()
        node.add_chore(self.write_uses)
        node.add_chore(self.write_failures)

    def used(self, decision_id: str, now: int) -> None:
        """Note that a decision answered a check, with the time in microseconds since the epoch."""
        self._uses[decision_id] = now

    def failed(self, subject: str, target: str, error: ExternalAccessCheckFailed) -> None:
        """Log a failed check and keep it for the audit log until it can be written."""
        cause = str(error.__cause__ or error)
        _log.error("external access could not be checked for %s: %s", subject, cause)
        error.is_logged = True
        with self._lock:
            self._failures.append({"subject": subject, "target": target[:_LONGEST], "error": cause[:_LONGEST]})

    def write_uses(self) -> None:
        """Store when decisions were last used."""
        if not self._uses:
            return
        uses, self._uses = self._uses, {}
        self._node.store.note_use({key: datetime.fromtimestamp(at / 1e6, UTC) for key, at in uses.items()})

    def write_failures(self) -> None:
        """Write the failures to the audit log; keep those that cannot be written yet."""
        with self._lock:
            waiting = list(self._failures)
            self._failures.clear()
        for index, what in enumerate(waiting):
            try:
                self._node.store.record(AuditAction.CHECK_FAILED, actor="system", now=self._node.clock(), after=what)
            except ExternalAccessCheckFailed:
                with self._lock:
                    self._failures.extendleft(reversed(waiting[index:]))
                raise


_Key = tuple[str, ...]
_WAIT_SECONDS = 5.0
_WRITTEN_AT_ONCE = 100
_LONGEST_KEPT = 512
"""Longest target that is kept in memory, because the subject chooses targets."""


@dataclass(frozen=True, slots=True)
class PendingLimits:
    """Limits for the requests of a subject."""

    new_requests: int = 200
    """Maximum burst of new requests per subject and user."""
    refill_per_second: float = 1.0
    """New requests that become possible per second after a burst."""
    counting_seconds: float = 5.0
    """Interval at which the count of a repeated request is written."""
    pending: int = 1000
    """Maximum number of pending requests per subject and user, on all nodes together; 0 means no limit."""
    remembered: int = 10_000


@dataclass(slots=True)
class _KnownRequest:
    """Request that this node has registered."""

    request_id: str
    written: float
    resumes: bool
    """Whether the request already has a resume action, as far as this node knows."""
    unwritten: int = 0
    doubted: bool = False
    """Whether decisions have changed since, so that the request may not be pending anymore."""


@dataclass(slots=True)
class _RequestAllowance:
    left: float
    at: float


class PendingRequests:
    """Register requests and count repeated ones."""

    def __init__(self, node: AccessNode, limits: PendingLimits) -> None:
        """Subscribe to changes of decisions, because an answered request can be filed again."""
        self._node = node
        self._limits = limits
        self._known: OrderedDict[_Key, _KnownRequest] = OrderedDict()
        self._orphans: list[_KnownRequest] = []
        self._allowances: OrderedDict[tuple[str, str], _RequestAllowance] = OrderedDict()
        self._flights: dict[_Key, threading.Event] = {}
        self._lock = threading.Lock()
        node.on_change(self._doubt)
        node.add_chore(self._write_counts)

    def register(self, access: AccessTuple, origin: Requester, make: Callable[[str], NewRequest]) -> str | None:
        """Return the id of the pending request, creating it if necessary; None if the subject exceeds its limits.

        Returns an empty text if the access was decided meanwhile and this node has not seen that yet. ``make`` builds
        the request for an id, because the resume context is sealed for that id. A pending request without a resume
        action gets it.
        """
        key, mine = _key_of(access, origin), threading.Event()
        while True:
            if known := self._counted(key):
                return self._attached(known, make)
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    self._flights[key] = mine
                    break
            flight.wait(_WAIT_SECONDS)  # another thread is registering the same request and counts it
        try:
            return self._add(key, access, origin, make)
        finally:
            with self._lock:
                del self._flights[key]
            mine.set()

    def _add(self, key: _Key, access: AccessTuple, origin: Requester, make: Callable[[str], NewRequest]) -> str | None:
        if not self._take_allowance((str(access.subject), origin.user_id)):
            return None
        request = make(new_id())
        registered = self._node.store.register(request, now=self._node.clock(), most_pending=self._limits.pending)
        if registered.full:
            return None
        if not registered.request_id:
            return ""
        known = _KnownRequest(registered.request_id, monotonic(), registered.created and bool(request.resume_action))
        with self._lock:
            self._forget(key)
            self._known[key] = known
            while len(self._known) > self._limits.remembered:
                self._forget(next(iter(self._known)))
        return self._attached(known, make)

    def _doubt(self) -> None:
        """Make the next caller check whether the request is still pending."""
        with self._lock:
            for known in self._known.values():
                known.doubted = True

    def _attached(self, known: _KnownRequest, make: Callable[[str], NewRequest]) -> str:
        """Attach the resume action, if the caller supplies one and the request has none."""
        if not known.resumes:
            request = make(known.request_id)
            if request.resume_action:
                known.resumes = True
                self._node.store.attach_resume(request, now=self._node.clock())
        return known.request_id

    def _counted(self, key: _Key) -> _KnownRequest | None:
        """Return the request and count it, if this node registered it recently."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return None
            known.unwritten += 1
            if not known.doubted and monotonic() - known.written < self._limits.counting_seconds:
                return known
            known.doubted = False
            times, known.unwritten, known.written = known.unwritten, 0, monotonic()
        if self._counted_in_store(known, times):
            return known
        with self._lock:
            self._known.pop(key, None)
        return None

    def _counted_in_store(self, known: _KnownRequest, times: int) -> bool:
        """Write a count; keep one that cannot be written now."""
        try:
            return self._node.store.count_again(known.request_id, times, now=self._node.clock())
        except ExternalAccessCheckFailed:
            with self._lock:
                known.unwritten += times
            raise

    def _forget(self, key: _Key) -> None:
        """Remove a request from memory, but keep its unwritten count."""
        known = self._known.pop(key, None)
        if known is not None and known.unwritten:
            self._orphans.append(known)

    def _write_counts(self) -> None:
        """Write pending counts, so that the stored count is right even if the request is not repeated."""
        due = monotonic() - self._limits.counting_seconds
        with self._lock:
            waiting = [known for known in self._known.values() if known.unwritten and known.written < due]
            waiting = (self._orphans + waiting)[:_WRITTEN_AT_ONCE]  # the node refreshes decisions between batches
        for known in waiting:
            with self._lock:
                times, known.unwritten, known.written = known.unwritten, 0, monotonic()
            if times:
                self._counted_in_store(known, times)
        with self._lock:
            self._orphans = [known for known in self._orphans if known.unwritten]

    def _take_allowance(self, who: tuple[str, str]) -> bool:
        now, most = monotonic(), float(self._limits.new_requests)
        with self._lock:
            allowance = self._allowances.setdefault(who, _RequestAllowance(most, now))
            self._allowances.move_to_end(who)
            while len(self._allowances) > self._limits.remembered:
                self._allowances.popitem(last=False)
            allowance.left = min(most, allowance.left + (now - allowance.at) * self._limits.refill_per_second)
            allowance.at = now
            if allowance.left < 1:
                return False
            allowance.left -= 1
            return True


def _key_of(access: AccessTuple, origin: Requester) -> _Key:
    target = access.target if len(access.target) <= _LONGEST_KEPT else access.digest
    about = (access.subject.kind, access.subject.name, access.resource_type, access.operation, target)
    return (*about, origin.user_id, origin.session_key, origin.organization_id)


LONGEST_MESSAGE = 500

_MESSAGES = (
    (SESSION_APPROVAL, "Allowed for this session by an approval."),
    (PERMANENT_APPROVAL, "Allowed permanently by an approval."),
    (DENIED, "External resource is disabled."),
)
# Read-only: guarded code can import this module and could otherwise replace a denial by an approval.
ANSWERS = MappingProxyType(
    {
        text: AccessDecision(
            allowed=DecisionCode(text).allows, code=DecisionCode(text), requires_approval=False, message=message
        )
        for text, message in _MESSAGES
    }
)
NEEDS_APPROVAL = "External resource needs approval."


def _final(message: str, code: DecisionCode = DecisionCode.NOT_ENABLED) -> AccessDecision:
    """Return a refusal that no approval changes."""
    return AccessDecision(allowed=False, code=code, requires_approval=False, message=message)


UNNAMED = _final("External resource cannot be named in a rule, so it cannot be approved.")
UNREADABLE = _final(f"{EXTERNAL_URL_LOCKED} Servers read its path in different ways: it cannot be approved.")


def locked(wanted: RequestedTarget, code: DecisionCode, request_id: str | None) -> AccessDecision:
    """Return the result for undecided access, with the id of the pending request if one was filed."""
    message = EXTERNAL_URL_LOCKED if wanted.resource_type is ResourceType.NETWORK else NEEDS_APPROVAL
    if request_id is None:
        return _without_request(code, message)
    return AccessDecision(allowed=False, code=code, requires_approval=True, message=message, request_id=request_id)


@lru_cache(maxsize=256)
def denied(reason: str) -> AccessDecision:
    """Return a denial with the administrator's reason in its message."""
    message = f"{ANSWERS[DENIED].message[:-1]}: {' '.join(reason.split())}"[:LONGEST_MESSAGE]
    return _final(message, DecisionCode.DENIED)


@lru_cache(maxsize=16)
def _without_request(code: DecisionCode, message: str) -> AccessDecision:
    return AccessDecision(allowed=False, code=code, requires_approval=True, message=message)


FAILED = "failed"
"""Name of the counter for failed checks."""


class ResultCounter:
    """Number of times that each result was returned."""

    __slots__ = ("_counters", "_lock", "_looks")

    def __init__(self) -> None:
        names = (*(code.value for code in DecisionCode), FAILED)
        # Advancing a counter is atomic in the interpreter: two threads never get the same number.
        self._counters: Mapping[str, count[int]] = MappingProxyType({name: count() for name in names})
        self._looks = 0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Count one result."""
        next(self._counters[name])

    def totals(self) -> dict[str, int]:
        """Return the totals. Reading a counter advances it too, so the number of reads is subtracted."""
        with self._lock:
            found = {name: next(counter) - self._looks for name, counter in self._counters.items()}
            self._looks += 1
        return found


_LONGEST_ACTION = 200
_HOST = Subject(SubjectKind.CORE, "host")
_NOBODY = Caller()


class GuardQuestion(NamedTuple):
    """Question of the guard about an access that no policy allows, with the fields of its native structure."""

    subject: str
    subject_kind: str
    subject_chain: tuple[str, ...]
    resource_type: str
    operation: str
    target: str
    register_request: bool
    user_id: Any
    organization_id: Any
    session_key: Any
    resume_action: str
    resume_context: str | None


class _CheckedSubject(NamedTuple):
    """Subject that asks, with the source of its identity. The origin is built only for a request."""

    subject: Subject
    session_key: str
    chain: tuple[str, ...]
    source: GuardQuestion | Caller
    task_id: str

    @property
    def origin(self) -> Requester:
        """User, organization, session and task of the request."""
        source = self.source
        return Requester(_text(source.user_id), _text(source.organization_id), self.session_key, self.task_id)


class _AskedAccess(NamedTuple):
    """Access as the caller described it."""

    resource_type: str
    operation: str
    target: str
    register: bool
    resume_action: str = ""
    resume_context: Any = None


class AccessService:
    """Check access and file requests. Decisions are in ``Administration``.

    A check never waits for the database. Only a new request is written, once.
    """

    def __init__(
        self,
        node: AccessNode,
        surroundings: HostEnvironment | None = None,
        *,
        seal: Callable[..., bytes] | None = None,
        limits: PendingLimits | None = None,
    ) -> None:
        """Answer from the node's snapshot; without surroundings all callers are the host, without an identity.

        ``seal`` encrypts resume contexts, like that of ``Sealer``; without it, contexts are rejected.
        """
        self.node = node
        self.surroundings: HostEnvironment = surroundings or UnguardedHost()
        self._seal = seal
        self._reader = TargetParser()
        self._pending = PendingRequests(node, limits or PendingLimits())
        self._deferred = DeferredRecords(node)
        self._counter = ResultCounter()

    def answers(self) -> dict[str, int]:
        """Return how often each result (codes of ``DecisionCode``, and ``failed``) occurred since the start."""
        return self._counter.totals()

    # ---- checks ------------------------------------------------------------------------------------------------------

    def check_external_access(
        self,
        *,
        resource_type: str,
        operation: str,
        target: str,
        register_request: bool = True,
        subject: Subject | None = None,
    ) -> AccessDecision:
        """Return whether the active subject may do this now, and file a request if it is undecided.

        Inside a guard, the subject and its identity come from the guard. The host may pass a subject.
        """
        return self._check(_AskedAccess(resource_type, operation, target, register_request), subject)

    def require_external_access(
        self,
        *,
        resource_type: str,
        operation: str,
        target: str,
        resume_action: str = "",
        resume_context: Any = None,
        subject: Subject | None = None,
    ) -> AccessDecision:
        """Check, and store a resume action with the request if approval is required.

        ``resume_action`` names a handler of the host; ``resume_context`` is JSON data for it, stored encrypted.
        """
        self._check_resume(resume_action, resume_context)
        asked = _AskedAccess(resource_type, operation, target, register=True)
        return self._check(asked._replace(resume_action=resume_action, resume_context=resume_context), subject)

    def standing(self, subject: Subject, resource_type: str, operation: str, target: str) -> str:
        """Return the code of the decision outside sessions, or an empty text. Files, counts and records nothing."""
        try:
            wanted = self._reader.read(resource_type, operation, target)
            found = self.node.snapshot.find((str(subject.kind), subject.name), wanted, "", time_ns() // 1000)
        except (InvalidInputError, ExternalAccessCheckFailed):
            return ""
        return "" if found is None else found.code

    def decide(self, question: tuple[Any, ...]) -> AccessDecision:
        """Answer a ``GuardQuestion``. The guard has already checked the policy, and leaves its guard for this call."""
        asked = GuardQuestion._make(question)
        try:
            wanted = self._reader.read(asked.resource_type, asked.operation, asked.target)
        except InvalidInputError:
            return self._counted(UNNAMED)  # a target that no rule can name cannot have been approved
        session_key = _text(asked.session_key)
        if (found := self._decided((asked.subject_kind, asked.subject), session_key, wanted)) is not None:
            return found
        subject = Subject(SubjectKind(asked.subject_kind), asked.subject)
        if str.__ne__(subject.kind, asked.subject_kind):
            raise InvalidInputError.of("the subject kinds were modified")
        checked = _CheckedSubject(subject, session_key, asked.subject_chain, asked, self._task_of(asked))
        try:
            context = None if asked.resume_context is None else json.loads(asked.resume_context)
            self._check_resume(asked.resume_action, context)
            what = (asked.resource_type, asked.operation, asked.target, asked.register_request)
            return self._missing(checked, wanted, _AskedAccess(*what, asked.resume_action, context))
        except InvalidInputError as error:
            # An exception would be reported as a failed check, without this reason.
            message = f"{EXTERNAL_URL_LOCKED if wanted.parsed else NEEDS_APPROVAL} {error}"[:LONGEST_MESSAGE]
            return self._counted(_final(message))

    # ---- parts of a check --------------------------------------------------------------------------------------------

    def _check(self, asked: _AskedAccess, subject: Subject | None) -> AccessDecision:
        if self.surroundings.is_guarded():
            if subject is not None:
                raise InvalidInputError.of("guarded code cannot choose the subject; omit it", pointer="/subject")
            context = asked.resume_context
            return self.surroundings.ask(
                asked.resource_type,
                asked.operation,
                asked.target,
                register_request=asked.register,
                resume_action=asked.resume_action,
                resume_context=None if context is None else encode_context(context).decode("utf-8", "surrogatepass"),
            )
        caller = self.surroundings.caller() or _NOBODY
        asker = subject or _HOST
        wanted = self._reader.read(asked.resource_type, asked.operation, asked.target, self.surroundings.place_of)
        found = self._decided((str(asker.kind), asker.name), caller.session_key, wanted)
        if found is not None:
            return found
        return self._missing(_CheckedSubject(asker, caller.session_key, (), caller, caller.task_id), wanted, asked)

    def _task_of(self, question: GuardQuestion) -> str:
        """Return the id of the current task of a subject, or an empty text.

        The guard restores the request context of the host for this call, so that the subject cannot choose another one.
        """
        caller = self.surroundings.caller()
        if caller is None:
            return ""
        identity = (question.user_id, question.organization_id, question.session_key)
        return caller.task_id if caller[:3] == tuple(map(_text, identity)) else ""

    def _decided(self, subject: tuple[str, str], session_key: str, wanted: RequestedTarget) -> AccessDecision | None:
        """Return the result of an existing decision, or None."""
        now = time_ns() // 1000
        try:
            found = self.node.snapshot.find(subject, wanted, session_key, now)
        except ExternalAccessCheckFailed as error:
            self._counter.add(FAILED)
            self._deferred.failed(":".join(subject), wanted.target, error)
            raise
        if found is None:
            return None
        self._counter.add(found.code)
        self._deferred.used(found.decision_id, now)
        return denied(found.reason) if found.reason else ANSWERS[found.code]

    def _missing(self, checked: _CheckedSubject, wanted: RequestedTarget, asked: _AskedAccess) -> AccessDecision:
        if wanted.is_ambiguous:
            return self._counted(UNREADABLE)
        if not asked.register:
            return self._counted(locked(wanted, DecisionCode.NOT_ENABLED, None))
        try:
            request_id = self._register(checked, wanted, asked)
            if request_id == "":
                self.node.refresh()
                found = self._decided((str(checked.subject.kind), checked.subject.name), checked.session_key, wanted)
                return found or self._counted(locked(wanted, DecisionCode.NOT_ENABLED, None))
        except ExternalAccessCheckFailed as error:
            self._counter.add(FAILED)
            self._deferred.failed(str(checked.subject), wanted.target, error)
            raise
        code = DecisionCode.PENDING if request_id else DecisionCode.NOT_ENABLED
        return self._counted(locked(wanted, code, request_id))

    def _counted(self, decision: AccessDecision) -> AccessDecision:
        """Count a result and return it."""
        self._counter.add(decision.code.value)
        return decision

    def _register(self, checked: _CheckedSubject, wanted: RequestedTarget, asked: _AskedAccess) -> str | None:
        access = AccessTuple(checked.subject, wanted.resource_type, wanted.operation, wanted.target)
        origin, chain = checked.origin, checked.chain or (str(checked.subject),)

        def make(request_id: str) -> NewRequest:
            request = NewRequest(access, _shown(asked.target, wanted), chain, origin, asked.resume_action, request_id)
            if asked.resume_context is None or self._seal is None:
                return request
            sealed = self._seal(asked.resume_context, request)
            again = partial(self._seal, asked.resume_context, request, sealed)
            return replace(request, resume_context=sealed, seal_again=again)

        return self._pending.register(access, origin, make)

    def _check_resume(self, action: object, context: object) -> None:
        if type(action) is not str or len(action) > _LONGEST_ACTION:
            message = f"expected a text of at most {_LONGEST_ACTION} characters"
            raise InvalidInputError.of(message, pointer="/resume_action")
        if character := invisible_character(action):
            raise InvalidInputError.of(f"the action contains the character {character}", pointer="/resume_action")
        if context is not None and not action:
            raise InvalidInputError.of("a resume context needs a resume action", pointer="/resume_context")
        if context is not None and self._seal is None:
            raise InvalidInputError.of("this host has no keys to encrypt a resume context", pointer="/resume_context")


def _text(value: object) -> str:
    return value if type(value) is str else identity_text(value, "identity")


def _shown(target: str, wanted: RequestedTarget) -> str:
    """Return a target as requested, without the query, which can contain tokens and is not part of a decision."""
    if wanted.resource_type is not ResourceType.NETWORK:
        return target
    cut = min((at for at in (target.find("?"), target.find("#")) if at >= 0), default=None)
    return target if cut is None else f"{target[:cut]}?..."
