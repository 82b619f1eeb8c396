"""Approvals and denials: lists, single decisions, revoke, undo and change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from pydantic import BaseModel

from democrai_sandbox.access.administration import LONGEST_REASON
from democrai_sandbox.access.values import DecisionEffect, DecisionScope, PageRequest, ResultPage
from democrai_sandbox.console.auth import Visitor, needs_password, refused_password, sandbox_of
from democrai_sandbox.console.render import id_in_query, redirect, render, url
from democrai_sandbox.errors import DecisionConflict
from democrai_sandbox.host.decisions import (
    SubmittedDecision,
    UnrequestedAccess,
    answers_words,
    decide,
    effect_words,
    restored_decisions,
)
from democrai_sandbox.host.sentences import decided_words
from democrai_sandbox.policy import ResourceType
from democrai_sandbox.runtime.access_environment import serving

from . import drafts
from .parameters import SignedInUser, UserIfSignedIn, decisions_wanted
from .request_decision import STATELESS, confirmation, read_versions, reason_problem
from .requests import ROWS, aftermath_of, decision_words, ended_holds

if TYPE_CHECKING:
    from democrai_sandbox.access.administration import Outcome
    from democrai_sandbox.access.values import Decision
    from democrai_sandbox.console.auth import RefusedPassword
    from democrai_sandbox.host.sandbox import Sandbox

router = APIRouter()
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
        return drafts.keep(request, f"/decisions/{decision_id}/revoke", {"reason": reason})
    if error := reason_problem(reason):
        return _page(request, visitor, decision_id, "decisions/revoke.html", status=422, error=error, reason=reason)
    try:
        ended = _decided(request, visitor, SubmittedDecision("revoke", decision_id, reason=reason.strip())).decision
    except DecisionConflict as conflict:
        return _page(request, visitor, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    if ended is not None and ended.effect is DecisionEffect.DENIAL:
        return redirect(request, "/denials", done="denial_removed", about=decision_id)
    return redirect(request, "/approvals", done="revoked", about=decision_id)


def _decided(request: Request, visitor: Visitor, submitted: SubmittedDecision) -> Outcome:
    return decide(sandbox_of(request).access.administration, visitor.caller, submitted)


@router.get("/decisions/{decision_id}/undo")
def ask_undo(request: Request, visitor: SignedInUser, decision_id: str) -> Response:
    """Show the effect of an undo."""
    return _undo_page(request, visitor, decision_id)


@router.post("/decisions/{decision_id}/undo")
def undo(request: Request, visitor: UserIfSignedIn, decision_id: str, password: Text = "") -> Response:
    """Undo a decision and its answers."""
    if visitor is None:
        return drafts.keep(request, f"/decisions/{decision_id}/undo", {})
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        done = administration.aftermath(decision_id)
        _, approvals = restored_decisions(administration, done)
    takes_password = bool(approvals) and needs_password(request, visitor, approvals)
    if takes_password and (refused := refused_password(request, visitor, password)):
        return _undo_page(request, visitor, decision_id, refused=refused)
    try:
        kept = _decided(request, visitor, SubmittedDecision("undo", decision_id)).kept
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
        return drafts.keep(request, f"/decisions/{decision_id}/approve", {"reason": sent.reason})
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
        outcome = _decided(request, visitor, submitted)
    except DecisionConflict as conflict:
        return _page(request, visitor, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    made = outcome.decision.id if outcome.decision else decision_id
    return redirect(request, f"/decisions/{made}", done="approved")


def _with_draft(request: Request, visitor: Visitor, decision_id: str, act: str) -> Response:
    """Return the page of an action, with the reason kept from before an ended session."""
    draft = drafts.taken(request, f"/decisions/{decision_id}/{act}")
    reason = draft.get("reason", "")[:LONGEST_REASON]
    answer = _page(request, visitor, decision_id, f"decisions/{act}.html", reason=reason)
    if draft:
        drafts.forget(request, answer)
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
