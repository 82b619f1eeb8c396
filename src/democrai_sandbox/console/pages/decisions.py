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
from democrai_sandbox.console.render import id_in_query, is_id, state_mark
from democrai_sandbox.errors import DecisionConflict, IdempotencyRunning
from democrai_sandbox.host import decisions
from democrai_sandbox.policy import InvalidInputError, ResourceType

from .parameters import Page, PageIfSignedIn, SignedInPage, decisions_wanted, keep_draft, kept_reason
from .requests import LIFETIMES, ROWS, aftermath_of, decision_words, detail_page, ended_holds, no_session

if TYPE_CHECKING:
    from democrai_sandbox.access.values import AccessTuple, Decision
    from democrai_sandbox.access.values import StoredRequest as Asked
    from democrai_sandbox.host.sandbox import Sandbox

    from .parameters import RefusedPassword

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
    choice: decisions.DecisionTarget
    chosen: int
    reason: str
    lifetime: str
    seen: int | None
    """The version that the form shows, or None."""

    def submitted(self, request_id: str) -> decisions.SubmittedDecision:
        """Return the decision. Only a permanent approval has a lifetime, though the form always has one."""
        target = None if self.choice.is_exact else self.choice.target
        span = timedelta(seconds=int(self.lifetime)) if self.lifetime and self.act == "permanent" else None
        return decisions.SubmittedDecision(self.act, request_id, target, self.reason, span, self.seen)

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


class ApprovalForm(BaseModel):
    """Form that approves the access of another decision."""

    reason: str = ""
    seen: str = ""
    password: str = ""


class DecisionForm(ApprovalForm):
    """Submitted form."""

    act: str = ""
    choice: str = "0"
    lifetime: str = ""
    confirmed: str = ""


@router.post("/requests/{request_id}/decide")
def decide(request: Request, page: PageIfSignedIn, request_id: str, sent: Annotated[DecisionForm, Form()]) -> Response:
    """Decide; a permanent approval needs a confirmation first."""
    if page is None:
        return keep_draft(request, f"/requests/{request_id}", sent.model_dump(include=set(_KEPT)))
    with page.administration() as administration:
        found = administration.request(request_id)
    if page.why_not:
        return detail_page(page, request_id, status=403, notice=page.why_not)
    if found.state is not RequestState.PENDING:
        return _conflict(page, found, "")
    filled = _read(found, sent)
    if wrong := _wrong(filled):
        return detail_page(page, request_id, **wrong, **filled.again())
    if filled.act == "permanent":
        return _permanently(page, found, filled, sent)
    return _decided(page, found, filled)


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
    offered = decisions.decision_targets(found.access)
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


def _permanently(page: Page, found: Asked, filled: DecisionValues, sent: DecisionForm) -> Response:
    """Ask for confirmation and, if needed, for the password; then approve."""
    with page.administration() as administration:
        approved = decisions.approved_accesses(administration, filled.submitted(found.id))
    takes_password = page.needs_password(approved)
    if not sent.confirmed:
        return _ask(page, found, filled, sent, takes_password=takes_password)
    refused = page.refused_password(sent.password) if takes_password else None
    if refused is not None:
        return _ask(page, found, filled, sent, takes_password=True, refused=refused)
    return _decided(page, found, filled)


def _decided(page: Page, found: Asked, filled: DecisionValues) -> Response:
    try:
        outcome = page.decide(filled.submitted(found.id))
    except DecisionConflict as error:
        with page.administration() as administration:
            return _conflict(page, administration.request(found.id), str(error))
    except InvalidInputError as error:
        return detail_page(page, found.id, status=422, notice=str(error), **filled.again())
    if outcome.decision is None:
        notice = f"Nothing was decided: {outcome.skipped}."
        return detail_page(page, found.id, status=409, notice=notice, **filled.again())
    return page.redirect(f"/requests/{found.id}", done=ACTS[filled.act], about=outcome.decision.id)


def _ask(
    page: Page,
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
        "asked": decisions.decided_words(found.access),
        "seen": sent.seen,
        "takes_password": takes_password,
    }
    return spelled_out(page, "requests/confirm.html", decision, refused, **context)


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
    page: Page, template: str, decision: UnconfirmedDecision, refused: RefusedPassword | None, **context: Any
) -> Response:
    """Return the confirmation page of a permanent decision, with its effect, answered requests and risk."""
    access = replace(decision.access, target=decision.target)
    with page.administration() as administration:
        (reach,) = administration.reach(decision.access, [access.target], own=decision.request_id)
        (risk,) = administration.risks(decision.access, [access.target])
    words: dict[str, Any] = {
        "words": decisions.effect_words(access, decision.effect, DecisionScope.PERMANENT, until=decision.until),
        "answers": decisions.answers_words(reach, DecisionScope.PERMANENT),
        "risk": risk,
        "trouble": refused.text if refused else "",
    }
    return confirmation(page, template, refused, **words, **context)


def confirmation(page: Page, template: str, refused: RefusedPassword | None, **context: Any) -> Response:
    """Return the confirmation page, also after a wrong password."""
    answer = page.render(template, status=refused.status if refused else 200, **context)
    if refused and refused.retry_after:
        answer.headers["Retry-After"] = str(refused.retry_after)
    return answer


def _conflict(page: Page, found: Asked, text: str) -> Response:
    """Show that nothing was changed, with the current state."""
    context: dict[str, Any] = {"found": found, "text": text, "why_no_session": no_session(found)}
    return page.render("requests/conflict.html", status=409, **context)


@router.post("/requests/{request_id}/notes")
def note(request: Request, page: PageIfSignedIn, request_id: str, sent: Annotated[NoteForm, Form()]) -> Response:
    """Add a note to a request: a remark, or a question to its user. A repeated submission is stored once."""
    if page is None:
        return keep_draft(request, f"/requests/{request_id}", {"note": sent.text})
    written = sent.text.strip()
    if not written or len(written) > LONGEST_REASON:
        errors = {"note": "The note is empty." if not written else f"At most {LONGEST_REASON} characters."}
        return detail_page(page, request_id, status=422, errors=errors, note=written)

    def act() -> StoredNote:
        with page.administration() as administration:
            return StoredNote(sequence=administration.note(request_id, written).sequence)

    # Another text from the same form, after the way back, is another note.
    key = f"note-{sent.once}-{state_mark(written)}" if is_id(sent.once) else None
    with suppress(IdempotencyRunning):  # the first of two clicks keeps it
        Repeatable(page.request, key).run(page.visitor, NoteForm(text=written), StoredNote, act, for_all=True)
    return page.redirect(f"/requests/{request_id}", done="noted")


Text = Annotated[str, Form()]
_UNDECIDED = "It is undecided again: asking for it makes a new request."
_SOON = timedelta(days=7)
"""Approvals that end within this time are marked."""


@router.get("/approvals")
def approvals(page: SignedInPage) -> Response:
    """List approvals with their administrator, last use and end."""
    return _list(page, DecisionEffect.APPROVAL)


@router.get("/denials")
def denials(page: SignedInPage) -> Response:
    """List denials."""
    return _list(page, DecisionEffect.DENIAL)


def _list(page: Page, effect: DecisionEffect) -> Response:
    wanted, narrowed = decisions_wanted(page.query)
    with page.administration() as administration:
        listed = administration.approvals if effect is DecisionEffect.APPROVAL else administration.denials
        listing = listed(narrowed, PageRequest(limit=ROWS, after=page.query.get("after", "")))
        holds = ended_holds(page)
        about = id_in_query(page.request, "about") if holds["revoked"] else ""
        is_open = bool(about) and not administration.is_decided(administration.decision(about).access)
    again = page.url(f"/decisions/{about}/approve")
    now = datetime.now(UTC)
    unused = timedelta(days=page.sandbox.settings.console.unused_days)
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
    return page.render("decisions/list.html", status=422 if wanted.errors else 200, **context)


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
def detail(page: SignedInPage, decision_id: str) -> Response:
    """Show one decision and its actions."""
    return _page(page, decision_id, "decisions/detail.html")


@router.get("/decisions/{decision_id}/revoke")
def ask_revoke(page: SignedInPage, decision_id: str) -> Response:
    """Show the effect of a revocation, and when it reaches all nodes."""
    return _with_draft(page, decision_id, "revoke")


@router.post("/decisions/{decision_id}/revoke")
def revoke(request: Request, page: PageIfSignedIn, decision_id: str, reason: Text = "") -> Response:
    """Revoke a decision."""
    if page is None:
        return keep_draft(request, f"/decisions/{decision_id}/revoke", {"reason": reason})
    if error := reason_problem(reason):
        return _page(page, decision_id, "decisions/revoke.html", status=422, error=error, reason=reason)
    try:
        ended = page.decide(decisions.SubmittedDecision("revoke", decision_id, reason=reason.strip())).decision
    except DecisionConflict as conflict:
        return _page(page, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    if ended is not None and ended.effect is DecisionEffect.DENIAL:
        return page.redirect("/denials", done="denial_removed", about=decision_id)
    return page.redirect("/approvals", done="revoked", about=decision_id)


@router.get("/decisions/{decision_id}/undo")
def ask_undo(page: SignedInPage, decision_id: str) -> Response:
    """Show the effect of an undo."""
    return _undo_page(page, decision_id)


@router.post("/decisions/{decision_id}/undo")
def undo(request: Request, page: PageIfSignedIn, decision_id: str, password: Text = "") -> Response:
    """Undo a decision and its answers."""
    if page is None:
        return keep_draft(request, f"/decisions/{decision_id}/undo", {})
    with page.administration() as administration:
        done = administration.aftermath(decision_id)
        _, approvals = decisions.restored_decisions(administration, done)
    if approvals and page.needs_password(approvals) and (refused := page.refused_password(password)):
        return _undo_page(page, decision_id, refused=refused)
    try:
        kept = page.decide(decisions.SubmittedDecision("undo", decision_id)).kept
    except DecisionConflict as conflict:
        return _page(page, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    request_id = done.decision.request_id
    place = f"/requests/{request_id}" if request_id else f"/decisions/{decision_id}"
    return page.redirect(place, done="undone_partly" if kept else "undone", about=decision_id)


def _undo_page(page: Page, decision_id: str, *, refused: RefusedPassword | None = None) -> Response:
    with page.administration() as administration:
        done = administration.aftermath(decision_id)
        restored, approvals = decisions.restored_decisions(administration, done)
    context: dict[str, Any] = {
        "found": done.decision,
        "effect": decision_words(done.decision),
        "reopened": len(done.answered) - len(done.started),
        "started": len(done.started),
        "restored": [decision_words(one) for one in restored],
        "takes_password": bool(approvals) and page.needs_password(approvals),
        "trouble": refused.text if refused else "",
        "place": f"/{done.decision.effect}s",
    }
    return confirmation(page, "decisions/undo.html", refused, **context)


@router.get("/decisions/{decision_id}/approve")
def ask_approve(page: SignedInPage, decision_id: str) -> Response:
    """Show the effect of a permanent approval that replaces a denial or a revoked decision."""
    return _with_draft(page, decision_id, "approve")


@router.post("/decisions/{decision_id}/approve")
def approve(
    request: Request, page: PageIfSignedIn, decision_id: str, sent: Annotated[ApprovalForm, Form()]
) -> Response:
    """Approve the access of another decision permanently."""
    if page is None:
        return keep_draft(request, f"/decisions/{decision_id}/approve", {"reason": sent.reason})
    again = partial(_page, page, decision_id, "decisions/approve.html", reason=sent.reason)
    if error := reason_problem(sent.reason):
        return again(status=422, error=error)
    versions = read_versions(sent.seen, 1)
    if not versions:
        return _page(page, decision_id, "decisions/detail.html", status=409, conflict=STATELESS)
    with page.administration() as administration:
        access = administration.decision(decision_id).access
    if page.needs_password([access]) and (refused := page.refused_password(sent.password)):
        return again(status=refused.status, trouble=refused.text)
    about = decisions.UnrequestedAccess(access.subject, access.resource_type, access.operation, access.target)
    try:
        outcome = page.decide(
            decisions.SubmittedDecision("permanent", about, reason=sent.reason.strip(), expected=versions[0])
        )
    except DecisionConflict as conflict:
        return _page(page, decision_id, "decisions/detail.html", status=409, conflict=str(conflict))
    made = outcome.decision.id if outcome.decision else decision_id
    return page.redirect(f"/decisions/{made}", done="approved")


def _with_draft(page: Page, decision_id: str, act: str) -> Response:
    """Return the page of an action, with the reason kept from before an ended session."""
    shown = partial(_page, page, decision_id, f"decisions/{act}.html")
    return page.with_draft(f"/decisions/{decision_id}/{act}", lambda draft: shown(reason=kept_reason(draft)))


def _page(page: Page, decision_id: str, template: str, *, status: int = 200, **more: Any) -> Response:
    with page.administration() as administration:
        found = administration.decision(decision_id)
        access = found.access
        (seen,) = administration.versions(access)
        (reach,) = administration.reach(access, [access.target])
        after = aftermath_of(page, decision_id=decision_id)
        holds = ended_holds(page, decision_id)
    is_approving = template == "decisions/approve.html"
    context: dict[str, Any] = {
        "found": found,
        "words": decisions.decided_words(access, may=is_approving or found.effect is DecisionEffect.APPROVAL),
        "reach": how_soon(page.sandbox),
        "is_session": found.scope is DecisionScope.SESSION,
        "seen": seen,
        "effect": decisions.effect_words(access, DecisionEffect.APPROVAL, DecisionScope.PERMANENT),
        "answers": decisions.answers_words(reach, DecisionScope.PERMANENT),
        "takes_password": is_approving and page.needs_password([access]),
        **after,
        "place": f"/{found.effect}s",
        "holds": holds | dict.fromkeys(("approved", "denied"), found.ended_at is None),
    }
    filled = {"error": "", "reason": "", "trouble": "", "conflict": "", "can_revoke": found.ended_at is None}
    return page.render(template, status=status, **context, **{**filled, **more})


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
