"""Actions on one request: decisions and notes. Every decision is shown in full before it is made."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Form, Request, Response
from pydantic import BaseModel

from democrai_sandbox.access.administration import LONGEST_REASON
from democrai_sandbox.access.values import DecisionEffect, DecisionScope, RequestState
from democrai_sandbox.console.api.idempotency import Repeatable
from democrai_sandbox.console.auth import Visitor, needs_password, refused_password, sandbox_of
from democrai_sandbox.console.render import is_id, redirect, render, state_mark
from democrai_sandbox.errors import DecisionConflict, IdempotencyRunning
from democrai_sandbox.host.decisions import (
    SubmittedDecision,
    answers_words,
    approved_accesses,
    decision_targets,
    effect_words,
)
from democrai_sandbox.host.decisions import decide as decide_submitted
from democrai_sandbox.host.sentences import decided_words
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.access_environment import serving

from . import drafts
from .parameters import UserIfSignedIn, why_not
from .requests import LIFETIMES, detail_page, no_session

if TYPE_CHECKING:
    from democrai_sandbox.access.values import AccessTuple
    from democrai_sandbox.access.values import StoredRequest as Asked
    from democrai_sandbox.console.auth import RefusedPassword
    from democrai_sandbox.host.decisions import DecisionTarget

router = APIRouter()

ACTS = MappingProxyType({"session": "approved_for_session", "permanent": "approved", "deny": "denied"})
"""Actions of the buttons, and their message codes."""
_LIFETIMES = MappingProxyType({seconds: words for seconds, words in LIFETIMES if seconds})
STATELESS = "Nothing was decided: the form has no version. This is the current state."
_KEPT = frozenset({"act", "choice", "reason", "lifetime"})
"""Fields that are kept if the session has ended."""
_DIGITS = 18
"""Maximum version number in the database."""


class DecisionValues(NamedTuple):
    """Values of the form."""

    act: str
    choice: DecisionTarget
    chosen: int
    reason: str
    lifetime: str
    seen: int | None
    """The version that the form shows, or None."""

    def submitted(self, request_id: str) -> SubmittedDecision:
        """Return the decision. Only a permanent approval has a lifetime, though the form always has one."""
        target = None if self.choice.is_exact else self.choice.target
        span = timedelta(seconds=int(self.lifetime)) if self.lifetime and self.act == "permanent" else None
        return SubmittedDecision(self.act, request_id, target, self.reason, span, self.seen)

    def again(self) -> dict[str, Any]:
        """Return the values that fill the form again."""
        return {"chosen": self.chosen, "reason": self.reason, "lifetime": self.lifetime}


class NoteForm(BaseModel):
    """Form of a note."""

    text: str = ""
    once: str = ""
    """Unique text of this form, by which a repeated submission is recognized."""


class StoredNote(BaseModel):
    """Marker of a stored note."""

    sequence: int


class DecisionForm(BaseModel):
    """Submitted form."""

    act: str = ""
    choice: str = "0"
    reason: str = ""
    lifetime: str = ""
    confirmed: str = ""
    password: str = ""
    seen: str = ""


@router.post("/requests/{request_id}/decide")
def decide(
    request: Request, visitor: UserIfSignedIn, request_id: str, sent: Annotated[DecisionForm, Form()]
) -> Response:
    """Decide; a permanent approval needs a confirmation first."""
    if visitor is None:
        return drafts.keep(request, f"/requests/{request_id}", sent.model_dump(include=set(_KEPT)))
    with serving(visitor.caller):
        found = sandbox_of(request).access.administration.request(request_id)
    if why_not(visitor):
        return detail_page(request, visitor, request_id, status=403, notice=why_not(visitor))
    if found.state is not RequestState.PENDING:
        return _conflict(request, visitor, found, "")
    filled = _read(found, sent)
    if wrong := _wrong(filled):
        return detail_page(request, visitor, request_id, **wrong, **filled.again())
    if filled.act == "permanent":
        return _permanently(request, visitor, found, filled, sent)
    return _decided(request, visitor, found, filled)


def reason_problem(reason: str) -> str:
    """Return the problem of a reason or another text for the audit log, or an empty text."""
    if len(reason) <= LONGEST_REASON:
        return ""
    return f"At most {LONGEST_REASON} characters; this has {len(reason)}."


def _wrong(filled: DecisionValues) -> dict[str, Any]:
    """Return the message for an invalid form, or an empty text."""
    if not filled.act:
        return {"status": 422, "notice": "Nothing was decided. Use one of the buttons below."}
    if too_long := reason_problem(filled.reason):
        return {"status": 422, "errors": {"reason": too_long}}
    return {"status": 409, "notice": STATELESS} if filled.seen is None else {}


def _read(found: Asked, sent: DecisionForm) -> DecisionValues:
    """Return the values of a form; without a valid action and choice it has no action."""
    offered = decision_targets(found.access)
    places = {str(place): place for place in range(len(offered))}
    act = sent.act if sent.act in ACTS and sent.choice in places else ""
    chosen = places.get(sent.choice, 0)
    lifetime = sent.lifetime if sent.lifetime in _LIFETIMES else ""
    seen = read_versions(sent.seen, len(offered))
    return DecisionValues(act, offered[chosen], chosen, sent.reason.strip(), lifetime, seen[chosen] if seen else None)


def read_versions(text: str, count: int) -> tuple[int, ...]:
    """Return the versions in a form, one per choice; empty if they are malformed."""
    found = text.split(",")
    known = len(found) == count and all(one.isascii() and one.isdigit() and len(one) <= _DIGITS for one in found)
    return tuple(map(int, found)) if known else ()


def _permanently(
    request: Request, visitor: Visitor, found: Asked, filled: DecisionValues, sent: DecisionForm
) -> Response:
    """Ask for confirmation and, if needed, for the password; then approve."""
    with serving(visitor.caller):
        approved = approved_accesses(sandbox_of(request).access.administration, filled.submitted(found.id))
    takes_password = needs_password(request, visitor, approved)
    if not sent.confirmed:
        return _ask(request, visitor, found, filled, sent, takes_password=takes_password)
    refused = refused_password(request, visitor, sent.password) if takes_password else None
    if refused is not None:
        return _ask(request, visitor, found, filled, sent, takes_password=True, refused=refused)
    return _decided(request, visitor, found, filled)


def _decided(request: Request, visitor: Visitor, found: Asked, filled: DecisionValues) -> Response:
    administration = sandbox_of(request).access.administration
    try:
        outcome = decide_submitted(administration, visitor.caller, filled.submitted(found.id))
    except DecisionConflict as error:
        with serving(visitor.caller):
            return _conflict(request, visitor, administration.request(found.id), str(error))
    except InvalidInputError as error:
        return detail_page(request, visitor, found.id, status=422, notice=str(error), **filled.again())
    if outcome.decision is None:
        notice = f"Nothing was decided: {outcome.skipped}."
        return detail_page(request, visitor, found.id, status=409, notice=notice, **filled.again())
    return redirect(request, f"/requests/{found.id}", done=ACTS[filled.act], about=outcome.decision.id)


def _ask(
    request: Request,
    visitor: Visitor,
    found: Asked,
    filled: DecisionValues,
    sent: DecisionForm,
    *,
    takes_password: bool,
    refused: RefusedPassword | None = None,
) -> Response:
    """Show the effect of a permanent approval, and ask for confirmation."""
    span = _LIFETIMES.get(filled.lifetime, "")
    decision = UnconfirmedDecision(
        found.access, filled.choice.target, DecisionEffect.APPROVAL, f"for {span}" if span else "", found.id
    )
    context: dict[str, Any] = {
        "found": found,
        "filled": filled,
        "asked": decided_words(found.access),
        "seen": sent.seen,
        "takes_password": takes_password,
    }
    return spelled_out(request, visitor, "requests/confirm.html", decision, refused, **context)


class UnconfirmedDecision(NamedTuple):
    """Permanent decision before its confirmation."""

    access: AccessTuple
    """The requested access."""
    target: str
    """The access of the decision, which covers it."""
    effect: DecisionEffect
    until: str = ""
    request_id: str = ""
    """The request that it answers, or an empty text."""


def spelled_out(
    request: Request,
    visitor: Visitor,
    template: str,
    decision: UnconfirmedDecision,
    refused: RefusedPassword | None,
    **context: Any,
) -> Response:
    """Return the confirmation page of a permanent decision, with its effect, answered requests and risk."""
    access = replace(decision.access, target=decision.target)
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        (reach,) = administration.reach(decision.access, [access.target], own=decision.request_id)
        (risk,) = administration.risks(decision.access, [access.target])
    words: dict[str, Any] = {
        "words": effect_words(access, decision.effect, DecisionScope.PERMANENT, until=decision.until),
        "answers": answers_words(reach, DecisionScope.PERMANENT),
        "risk": risk,
        "trouble": refused.text if refused else "",
    }
    return confirmation(request, visitor, template, refused, **words, **context)


def confirmation(
    request: Request, visitor: Visitor, template: str, refused: RefusedPassword | None, **context: Any
) -> Response:
    """Return the confirmation page, also after a wrong password."""
    page = render(request, template, visitor=visitor, status=refused.status if refused else 200, **context)
    if refused and refused.retry_after:
        page.headers["Retry-After"] = str(refused.retry_after)
    return page


def _conflict(request: Request, visitor: Visitor, found: Asked, text: str) -> Response:
    """Show that nothing was changed, with the current state."""
    context: dict[str, Any] = {"found": found, "text": text, "why_no_session": no_session(found)}
    return render(request, "requests/conflict.html", visitor=visitor, status=409, **context)


@router.post("/requests/{request_id}/notes")
def note(request: Request, visitor: UserIfSignedIn, request_id: str, sent: Annotated[NoteForm, Form()]) -> Response:
    """Add a note to a request: a remark, or a question to its user. A repeated submission is stored once."""
    if visitor is None:
        return drafts.keep(request, f"/requests/{request_id}", {"note": sent.text})
    written = sent.text.strip()
    if not written or len(written) > LONGEST_REASON:
        errors = {"note": "The note is empty." if not written else f"At most {LONGEST_REASON} characters."}
        return detail_page(request, visitor, request_id, status=422, errors=errors, note=written)

    def act() -> StoredNote:
        with serving(visitor.caller):
            record = sandbox_of(request).access.administration.note(request_id, written)
        return StoredNote(sequence=record.sequence)

    # Another text from the same form, after the way back, is another note.
    key = f"note-{sent.once}-{state_mark(written)}" if is_id(sent.once) else None
    with suppress(IdempotencyRunning):  # the first of two clicks keeps it
        Repeatable(request, key).run(visitor, NoteForm(text=written), StoredNote, act, for_all=True)
    return redirect(request, f"/requests/{request_id}", done="noted")
