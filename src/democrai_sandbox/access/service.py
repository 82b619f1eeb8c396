"""Access checks: answer from the snapshot, and file requests for undecided access.

A check never waits for the database. Only a new request is written, once.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.policy import (
    EXTERNAL_URL_LOCKED,
    AccessDecision,
    DecisionCode,
    InvalidInputError,
    ResourceType,
    Subject,
    SubjectKind,
)
from democrai_sandbox.policy.text import invisible_character

from .answers import ANSWERS, LONGEST_MESSAGE, NEEDS_APPROVAL, UNNAMED, UNREADABLE, denied, locked
from .contexts import encode_context
from .identity import Caller, identity_text
from .notes import Notes
from .registrar import Limits, Registrar
from .tally import FAILED, Tally
from .targets import Reader, Wanted
from .values import AccessTuple, NewRequest, Origin

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from .interface import GuardState, Question, Surroundings
    from .node import AccessNode

_LONGEST_ACTION = 200
_HOST = Subject(SubjectKind.CORE, "host")
_NOBODY = Caller()


class _Asking(NamedTuple):
    """Subject that asks, with the source of its identity. The origin is built only for a request."""

    subject: Subject
    session_key: str
    chain: tuple[str, ...]
    source: GuardState | Question | Caller
    task_id: str

    @property
    def origin(self) -> Origin:
        """User, organization, session and task of the request."""
        user, organization = _text(self.source.user_id), _text(self.source.organization_id)
        return Origin(user, organization, self.session_key, self.task_id)


class _Wish(NamedTuple):
    """Access as the caller described it."""

    resource_type: str
    operation: str
    target: str
    register: bool
    resume_action: str = ""
    resume_context: Any = None


class AccessService:
    """Check access and file requests. Decisions are in ``Administration``."""

    def __init__(
        self,
        node: AccessNode,
        surroundings: Surroundings | None = None,
        *,
        seal: Callable[..., bytes] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Answer from the node's snapshot; without surroundings all callers are the host, without an identity.

        ``seal`` encrypts resume contexts, like that of ``Sealer``; without it, contexts are rejected.
        """
        self.node = node
        self.surroundings: Surroundings = surroundings or Unguarded()
        self._seal = seal
        self._reader = Reader()
        self._registrar = Registrar(node, limits or Limits())
        self._notes = Notes(node)
        self._tally = Tally()

    def answers(self) -> dict[str, int]:
        """Return how often each result (codes of ``DecisionCode``, and ``failed``) occurred since the start."""
        return self._tally.totals()

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
        return self._check(_Wish(resource_type, operation, target, register_request), subject)

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
        wish = _Wish(resource_type, operation, target, register=True)
        return self._check(wish._replace(resume_action=resume_action, resume_context=resume_context), subject)

    def standing(self, subject: Subject, resource_type: str, operation: str, target: str) -> str:
        """Return the code of the decision outside sessions, or an empty text. Files, counts and records nothing."""
        try:
            wanted = self._reader.read(resource_type, operation, target)
            asked = (str(subject.kind), subject.name)
            found = self.node.snapshot.find(asked, wanted, "", time_ns() // 1000)
        except (InvalidInputError, ExternalAccessCheckFailed):
            return ""
        return "" if found is None else found.code

    def decide(self, question: Question) -> AccessDecision:
        """Answer the guard, which has already checked the policy and leaves its guard for this call."""
        try:
            wanted = self._reader.read(question.resource_type, question.operation, question.target)
        except InvalidInputError:
            return self._told(UNNAMED)  # a target that no rule can name cannot have been approved
        session_key = _text(question.session_key)
        found = self._decided((question.subject_kind, question.subject), session_key, wanted)
        if found is not None:
            return found
        chain = question.subject_chain
        subject = Subject(SubjectKind(question.subject_kind), question.subject)
        if str.__ne__(subject.kind, question.subject_kind):
            raise InvalidInputError.of("the subject kinds were modified")
        asking = _Asking(subject, session_key, chain, question, self._task_of(question))
        try:
            return self._missing(asking, wanted, self._wish_of(question))
        except InvalidInputError as error:
            # An exception would be reported as a failed check, without this reason.
            message = f"{EXTERNAL_URL_LOCKED if wanted.parsed else NEEDS_APPROVAL} {error}"[:LONGEST_MESSAGE]
            return self._told(
                AccessDecision(allowed=False, code=DecisionCode.NOT_ENABLED, requires_approval=False, message=message)
            )

    # ---- parts of a check --------------------------------------------------------------------------------------------

    def _check(self, wish: _Wish, subject: Subject | None) -> AccessDecision:
        if self.surroundings.is_guarded():
            if subject is not None:
                message = "guarded code cannot choose the subject; omit it"
                raise InvalidInputError.of(message, pointer="/subject")
            return self._ask_guard(wish)
        caller = self.surroundings.caller() or _NOBODY
        asked = subject or _HOST
        wanted = self._reader.read(wish.resource_type, wish.operation, wish.target, self.surroundings.place_of)
        found = self._decided((str(asked.kind), asked.name), caller.session_key, wanted)
        if found is not None:
            return found
        return self._missing(_Asking(asked, caller.session_key, (), caller, caller.task_id), wanted, wish)

    def _task_of(self, question: Question) -> str:
        """Return the id of the current task of a subject, or an empty text.

        The guard restores the request context of the host for this call, so that the subject cannot choose another one.
        """
        caller = self.surroundings.caller()
        if caller is None:
            return ""
        asking = (question.user_id, question.organization_id, question.session_key)
        return caller.task_id if caller[:3] == tuple(map(_text, asking)) else ""

    def _wish_of(self, question: Question) -> _Wish:
        context = None if question.resume_context is None else json.loads(question.resume_context)
        self._check_resume(question.resume_action, context)
        wish = _Wish(question.resource_type, question.operation, question.target, question.register_request)
        return wish._replace(resume_action=question.resume_action, resume_context=context)

    def _ask_guard(self, wish: _Wish) -> AccessDecision:
        return self.surroundings.ask(
            wish.resource_type,
            wish.operation,
            wish.target,
            register_request=wish.register,
            resume_action=wish.resume_action,
            resume_context=None
            if wish.resume_context is None
            else encode_context(wish.resume_context).decode("utf-8", "surrogatepass"),
        )

    def _decided(self, subject: tuple[str, str], session_key: str, wanted: Wanted) -> AccessDecision | None:
        """Return the result of an existing decision, or None."""
        now = time_ns() // 1000
        try:
            found = self.node.snapshot.find(subject, wanted, session_key, now)
        except ExternalAccessCheckFailed as error:
            self._tally.add(FAILED)
            self._notes.failed(":".join(subject), wanted.target, error)
            raise
        if found is None:
            return None
        self._tally.add(found.code)
        self._notes.used(found.decision_id, now)
        return denied(found.reason) if found.reason else ANSWERS[found.code]

    def _missing(self, asking: _Asking, wanted: Wanted, wish: _Wish) -> AccessDecision:
        if wanted.is_ambiguous:
            return self._told(UNREADABLE)
        if not wish.register:
            return self._told(locked(wanted, DecisionCode.NOT_ENABLED, None))
        try:
            request_id = self._register(asking, wanted, wish)
            if request_id == "":
                self.node.refresh()
                found = self._decided((str(asking.subject.kind), asking.subject.name), asking.session_key, wanted)
                return found or self._told(locked(wanted, DecisionCode.NOT_ENABLED, None))
        except ExternalAccessCheckFailed as error:
            self._tally.add(FAILED)
            self._notes.failed(str(asking.subject), wanted.target, error)
            raise
        code = DecisionCode.PENDING if request_id else DecisionCode.NOT_ENABLED
        return self._told(locked(wanted, code, request_id))

    def _told(self, decision: AccessDecision) -> AccessDecision:
        """Count a result and return it."""
        self._tally.add(decision.code.value)
        return decision

    def _register(self, asking: _Asking, wanted: Wanted, wish: _Wish) -> str | None:
        access = AccessTuple(asking.subject, wanted.resource_type, wanted.operation, wanted.target)
        origin = asking.origin
        chain = asking.chain or (str(asking.subject),)

        def make(request_id: str) -> NewRequest:
            request = NewRequest(access, _shown(wish.target, wanted), chain, origin, wish.resume_action, request_id)
            if wish.resume_context is None or self._seal is None:
                return request
            sealed = self._seal(wish.resume_context, request)
            again = partial(self._seal, wish.resume_context, request, sealed)
            return replace(request, resume_context=sealed, seal_again=again)

        return self._registrar.register(access, origin, make)

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


class Unguarded:
    """Surroundings of a host without guards and callers, for tools and tests."""

    def caller(self) -> Caller | None:
        """Return None."""
        return None

    def place_of(self, path: str) -> str:
        """Return the path with all links resolved."""
        return os.path.realpath(path)

    def is_guarded(self) -> bool:
        """Return False."""
        return False

    def guard(self) -> GuardState | None:
        """Return None."""
        return None

    def ask(self, *_: object, **__: object) -> AccessDecision:
        """Raise an error, because no guard exists."""
        raise InvalidInputError.of("no guard is active")

    def outside(self) -> AbstractContextManager[Any]:
        """Return a context that changes nothing."""
        return nullcontext()


def _text(value: object) -> str:
    return value if type(value) is str else identity_text(value, "identity")


def _shown(target: str, wanted: Wanted) -> str:
    """Return a target as requested, without the query, which can contain tokens and is not part of a decision."""
    if wanted.resource_type is not ResourceType.NETWORK:
        return target
    cut = min((at for at in (target.find("?"), target.find("#")) if at >= 0), default=None)
    return target if cut is None else f"{target[:cut]}?..."
