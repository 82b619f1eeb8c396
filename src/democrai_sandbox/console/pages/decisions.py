"""Decisions: those of one request, and the lists of approvals and denials."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Form, Request, Response
from pydantic import BaseModel

from democrai_sandbox.access.administration import LONGEST_REASON
from democrai_sandbox.access.values import DecisionEffect, DecisionScope, PageRequest, RequestState, ResultPage
from democrai_sandbox.console.api.openapi import Repeatable
from democrai_sandbox.console.auth import Visitor, needs_password, refused_password, sandbox_of
from democrai_sandbox.console.render import id_in_query, is_id, redirect, render, state_mark, url
from democrai_sandbox.errors import DecisionConflict, IdempotencyRunning
from democrai_sandbox.host.decisions import (
    SubmittedDecision,
    UnrequestedAccess,
    answers_words,
    approved_accesses,
    decided_words,
    decision_targets,
    effect_words,
    restored_decisions,
)
from democrai_sandbox.host.decisions import decide as decide_submitted
from democrai_sandbox.policy import InvalidInputError, ResourceType
from democrai_sandbox.runtime.access_environment import serving

from .parameters import SignedInUser, UserIfSignedIn, decisions_wanted, forget_draft, keep_draft, kept_draft, why_not
from .requests import LIFETIMES, ROWS, aftermath_of, decision_words, detail_page, ended_holds, no_session

if TYPE_CHECKING:
    from democrai_sandbox.access.administration import Outcome
    from democrai_sandbox.access.values import AccessTuple, Decision
    from democrai_sandbox.access.values import StoredRequest as Asked
    from democrai_sandbox.console.auth import RefusedPassword
    from democrai_sandbox.host.decisions import DecisionTarget
    from democrai_sandbox.host.sandbox import Sandbox

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
        return keep_draft(request, f"/requests/{request_id}", sent.model_dump(include=set(_KEPT)))
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
    """Return the confirmation page of a permanent decision, with its effect, answered requests and risk.

    Every decision is shown in full before it is made.
    """
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
        return keep_draft(request, f"/requests/{request_id}", {"note": sent.text})
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


Text = Annotated[str, Form()]
_UNDECIDED = "It is undecided again: asking for it makes a new request."
_SOON = timedelta(days=7)
"""Approvals that end within this time are marked."""


@router.get("/approvals")
def approvals(request: Request, visitor: SignedInUser) -> Response:
    """List approvals with their administrator, last use and end."""
    return _list(request, visitor, DecisionEffect.APPROVAL)


@router.get("/denials")
def denials(request: Request, visitor: SignedInUser) -> Response:
    """List denials."""
    return _list(request, visitor, DecisionEffect.DENIAL)


def _list(request: Request, visitor: Visitor, effect: DecisionEffect) -> Response:
    sandbox = sandbox_of(request)
    wanted, narrowed = decisions_wanted(request.query_params)
    page = PageRequest(limit=ROWS, after=request.query_params.get("after", ""))
    with serving(visitor.caller):
        administration = sandbox.access.administration
        listed = administration.approvals if effect is DecisionEffect.APPROVAL else administration.denials
        listing = listed(narrowed, page)
        holds = ended_holds(request)
        about = id_in_query(request, "about") if holds["revoked"] else ""
        is_open = bool(about) and not administration.is_decided(administration.decision(about).access)
    again = url(request, f"/decisions/{about}/approve")
    now = datetime.now(UTC)
    unused = timedelta(days=sandbox.settings.console.unused_days)
    context: dict[str, Any] = {
        "effect": effect,
        "path": f"/{effect}s",
        "listing": ResultPage((), "") if wanted.errors else listing,
        "wanted": wanted,
        "remarks": {one.id: remarks(one, now, unused) for one in listing.items},
        "resources": [("", "any"), *((kind.value, kind.value.replace("_", " ")) for kind in ResourceType)],
        "message_more": _UNDECIDED if is_open else "",
        "message_link": ("Approve it again", again) if about and effect is DecisionEffect.APPROVAL else None,
        "holds": holds,
    }
    status = 422 if wanted.errors else 200
    return render(request, "decisions/list.html", visitor=visitor, status=status, **context)


def remarks(decision: Decision, now: datetime, unused: timedelta) -> list[str]:
    """Return the notes for cleaning up."""
    if decision.ended_at is not None:
        return []
    found = []
    idle = now - (decision.last_used or decision.created_at)
    if decision.effect is DecisionEffect.APPROVAL and idle >= unused:
        found.append(f"not used for {idle.days} days")
    if decision.expires_at is not None and decision.expires_at - now <= _SOON:
        found.append("ends soon")
    return found


@router.get("/decisions/{decision_id}")
def detail(request: Request, visitor: SignedInUser, decision_id: str) -> Response:
    """Show one decision and its actions."""
    return _page(request, visitor, decision_id, "decisions/detail.html")


@router.get("/decisions/{decision_id}/revoke")
def ask_revoke(request: Request, visitor: SignedInUser, decision_id: str) -> Response:
    """Show the effect of a revocation, and when it reaches all nodes."""
    return _with_draft(request, visitor, decision_id, "revoke")


@router.post("/decisions/{decision_id}/revoke")
def revoke(request: Request, visitor: UserIfSignedIn, decision_id: str, reason: Text = "") -> Response:
    """Revoke a decision."""
    if visitor is None:
        return keep_draft(request, f"/decisions/{decision_id}/revoke", {"reason": reason})
    if error := reason_problem(reason):
        return _page(request, visitor, decision_id, "decisions/revoke.html", status=422, error=error, reason=reason)
    try:
        ended = _submitted(request, visitor, SubmittedDecision("revoke", decision_id, reason=reason.strip())).decision
    except DecisionConflict as conflict:
        return _page(request, visitor, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    if ended is not None and ended.effect is DecisionEffect.DENIAL:
        return redirect(request, "/denials", done="denial_removed", about=decision_id)
    return redirect(request, "/approvals", done="revoked", about=decision_id)


def _submitted(request: Request, visitor: Visitor, submitted: SubmittedDecision) -> Outcome:
    return decide_submitted(sandbox_of(request).access.administration, visitor.caller, submitted)


@router.get("/decisions/{decision_id}/undo")
def ask_undo(request: Request, visitor: SignedInUser, decision_id: str) -> Response:
    """Show the effect of an undo."""
    return _undo_page(request, visitor, decision_id)


@router.post("/decisions/{decision_id}/undo")
def undo(request: Request, visitor: UserIfSignedIn, decision_id: str, password: Text = "") -> Response:
    """Undo a decision and its answers."""
    if visitor is None:
        return keep_draft(request, f"/decisions/{decision_id}/undo", {})
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        done = administration.aftermath(decision_id)
        _, approvals = restored_decisions(administration, done)
    takes_password = bool(approvals) and needs_password(request, visitor, approvals)
    if takes_password and (refused := refused_password(request, visitor, password)):
        return _undo_page(request, visitor, decision_id, refused=refused)
    try:
        kept = _submitted(request, visitor, SubmittedDecision("undo", decision_id)).kept
    except DecisionConflict as conflict:
        return _page(request, visitor, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    request_id = done.decision.request_id
    place = f"/requests/{request_id}" if request_id else f"/decisions/{decision_id}"
    return redirect(request, place, done="undone_partly" if kept else "undone", about=decision_id)


def _undo_page(
    request: Request, visitor: Visitor, decision_id: str, *, refused: RefusedPassword | None = None
) -> Response:
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        done = administration.aftermath(decision_id)
        restored, approvals = restored_decisions(administration, done)
    context: dict[str, Any] = {
        "found": done.decision,
        "effect": decision_words(done.decision),
        "reopened": len(done.answered) - len(done.started),
        "started": len(done.started),
        "restored": [decision_words(one) for one in restored],
        "takes_password": bool(approvals) and needs_password(request, visitor, approvals),
        "trouble": refused.text if refused else "",
        "place": f"/{done.decision.effect}s",
    }
    return confirmation(request, visitor, "decisions/undo.html", refused, **context)


@router.get("/decisions/{decision_id}/approve")
def ask_approve(request: Request, visitor: SignedInUser, decision_id: str) -> Response:
    """Show the effect of a permanent approval that replaces a denial or a revoked decision."""
    return _with_draft(request, visitor, decision_id, "approve")


class ApprovalForm(BaseModel):
    """Form that approves the access of another decision."""

    reason: str = ""
    seen: str = ""
    password: str = ""


@router.post("/decisions/{decision_id}/approve")
def approve(
    request: Request, visitor: UserIfSignedIn, decision_id: str, sent: Annotated[ApprovalForm, Form()]
) -> Response:
    """Approve the access of another decision permanently."""
    if visitor is None:
        return keep_draft(request, f"/decisions/{decision_id}/approve", {"reason": sent.reason})
    again = partial(_page, request, visitor, decision_id, "decisions/approve.html", reason=sent.reason)
    if error := reason_problem(sent.reason):
        return again(status=422, error=error)
    versions = read_versions(sent.seen, 1)
    if not versions:
        return _page(request, visitor, decision_id, "decisions/detail.html", status=409, conflict=STATELESS)
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        access = administration.decision(decision_id).access
    if needs_password(request, visitor, [access]) and (refused := refused_password(request, visitor, sent.password)):
        return again(status=refused.status, trouble=refused.text)
    about = UnrequestedAccess(access.subject, access.resource_type, access.operation, access.target)
    submitted = SubmittedDecision("permanent", about, reason=sent.reason.strip(), expected=versions[0])
    try:
        outcome = _submitted(request, visitor, submitted)
    except DecisionConflict as conflict:
        return _page(request, visitor, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    made = outcome.decision.id if outcome.decision else decision_id
    return redirect(request, f"/decisions/{made}", done="approved")


def _with_draft(request: Request, visitor: Visitor, decision_id: str, act: str) -> Response:
    """Return the page of an action, with the reason kept from before an ended session."""
    draft = kept_draft(request, f"/decisions/{decision_id}/{act}")
    reason = draft.get("reason", "")[:LONGEST_REASON]
    answer = _page(request, visitor, decision_id, f"decisions/{act}.html", reason=reason)
    if draft:
        forget_draft(request, answer)
    return answer


def _page(
    request: Request, visitor: Visitor, decision_id: str, template: str, *, status: int = 200, **more: Any
) -> Response:
    sandbox = sandbox_of(request)
    with serving(visitor.caller):
        found = sandbox.access.administration.decision(decision_id)
        access = found.access
        (seen,) = sandbox.access.administration.versions(access)
        (reach,) = sandbox.access.administration.reach(access, [access.target])
        after = aftermath_of(request, decision_id=decision_id)
        holds = ended_holds(request, decision_id)
    may = found.effect is DecisionEffect.APPROVAL or template == "decisions/approve.html"
    words = decided_words(access, may=may)
    context: dict[str, Any] = {
        "found": found,
        "words": words,
        "reach": how_soon(sandbox),
        "is_session": found.scope is DecisionScope.SESSION,
        "seen": seen,
        "effect": effect_words(access, DecisionEffect.APPROVAL, DecisionScope.PERMANENT),
        "answers": answers_words(reach, DecisionScope.PERMANENT),
        "takes_password": template == "decisions/approve.html" and needs_password(request, visitor, [access]),
        **after,
    }
    context["place"] = f"/{found.effect}s"
    context["holds"] = holds | dict.fromkeys(("approved", "denied"), found.ended_at is None)
    filled = {"error": "", "reason": "", "trouble": "", "conflict": "", "can_revoke": found.ended_at is None}
    return render(request, template, visitor=visitor, status=status, **context, **{**filled, **more})


def how_soon(sandbox: Sandbox) -> str:
    """Return how soon a change reaches all nodes."""
    status = sandbox.access.node.status
    seconds = sandbox.settings.poll_seconds
    latest = f"within {seconds:g} second{'' if seconds == 1 else 's'}"
    if sandbox.settings.stream_type == "memory":
        return f"In this process at once. Other nodes read the change {latest}."
    if status.bus_connected:
        return f"In this process at once. Other nodes are notified at once, and read the change {latest} if that fails."
    return f"In this process at once. Events do not arrive now: other nodes read the change {latest}."
