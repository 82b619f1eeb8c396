"""Requests: the queue, single requests, and updates for open pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Response

from democrai_sandbox.access.administration import LONGEST_REASON
from democrai_sandbox.access.store.queries import MOST_COUNTED
from democrai_sandbox.access.values import AuditAction, DecisionScope, PageRequest, RequestState, ResultPage, new_id
from democrai_sandbox.console.live_updates import pulse_of
from democrai_sandbox.console.render import PlainResponse, id_in_query, visible_text
from democrai_sandbox.errors import DecisionUnknown, ExtensionUnknown, ExternalAccessAdminRequired, RequestUnknown
from democrai_sandbox.host.decisions import answered_words, answers_words, decided_words, decision_targets, effect_words
from democrai_sandbox.host.overview import subject_profile
from democrai_sandbox.policy import InvalidInputError, ResourceType, SubjectKind

from .parameters import AGES, STATES, Page, SignedInPage, kept_reason, requests_wanted

if TYPE_CHECKING:
    from democrai_sandbox.access.administration import Administration
    from democrai_sandbox.access.values import Decision, DecisionReach
    from democrai_sandbox.access.values import StoredRequest as Asked
    from democrai_sandbox.access.verdicts import RiskAssessment
    from democrai_sandbox.host.decisions import DecisionTarget
    from democrai_sandbox.host.overview import SubjectRule
    from democrai_sandbox.host.sandbox import Sandbox

router = APIRouter()

ROWS = 25
_ENDED = ("revoked", "denial_removed", "undone", "undone_partly")
"""Messages about a decision that has ended."""
_DECIDED = frozenset({"approved", "approved_for_session", "denied"})
BUTTONS = MappingProxyType({"session": "Approve for this session", "permanent": "Approve permanently", "deny": "Deny"})
"""Values and labels of the buttons."""
_NOT_FOR_REQUESTERS = MappingProxyType({"declared": None, "risk": None, "alike": (), "similar": (), "decision": None})
"""Empty values for facts that need the right to decide."""
_DIGITS = 3
_MOST_IDS = 100
_MOST_DECLARED = 50
LIFETIMES = (
    ("", "no end"),
    ("3600", "1 hour"),
    ("86400", "1 day"),
    ("604800", "7 days"),
    ("2592000", "30 days"),
    ("31536000", "1 year"),
)
"""Seconds in the form, and their words."""


@router.get("/")
def start(page: SignedInPage) -> Response:
    """Redirect to the queue."""
    return page.redirect("/requests")


@router.get("/requests")
def queue(page: SignedInPage) -> Response:
    """Show pending requests, one row per access, or single answered requests."""
    now = datetime.now(UTC)
    pulse = pulse_of(page.sandbox)  # before reading: a change in between is reported twice instead of missed
    part = PageRequest(limit=ROWS, after=page.query.get("after", ""))
    common: dict[str, Any] = {"since": now, "pulse": pulse}
    if not page.visitor.may_decide:
        with page.administration() as administration:
            own = administration.own_requests(part)
        return page.render("requests/own.html", listing=own, **common)
    wanted, narrowed = requests_wanted(page.query, now)
    with page.administration() as administration:
        counts = administration.counts(replace(narrowed, states=()))
        is_queue = narrowed.states == (RequestState.PENDING,)
        listed = administration.queue if is_queue else administration.pending_requests
        listing = ResultPage((), "") if wanted.errors else listed(narrowed, part)
    context: dict[str, Any] = {
        "listing": listing,
        "wanted": wanted,
        "state": wanted.values["state"] or "pending",
        "tabs": [(name, sum(counts.get(state, 0) for state in states)) for name, states in STATES.items()],
        "most": MOST_COUNTED,
        "kinds": [("", "any"), *((kind.value, kind.value) for kind in SubjectKind)],
        "resources": [("", "any"), *((kind.value, kind.value.replace("_", " ")) for kind in ResourceType)],
        "ages": [("", "any time"), *((name, age.label) for name, age in AGES.items())],
    }
    return page.render("requests/list.html", status=422 if wanted.errors else 200, **context, **common)


@router.get("/requests/states")
def states(page: SignedInPage) -> Response:
    """Return to an open page the changes of its rows, and the number of new requests."""
    pulse = pulse_of(page.sandbox)
    ids = page.query.get("ids", "").split(",")[:_MOST_IDS]
    found = {}
    with page.administration() as administration:
        for one in filter(None, ids):
            try:
                asked = _looked_up(page, one, pulse)
            except (RequestUnknown, InvalidInputError, ExternalAccessAdminRequired):
                continue
            words = asked.state.value.replace("_", " ")
            if asked.changed_by:
                words = visible_text(f"{words} by {asked.changed_by}")
            found[one] = {"state": asked.state.value, "words": words}
        new = _new_since(page, administration)
    return PlainResponse({"states": found, "new": new, "pulse": pulse})


def _looked_up(page: Page, request_id: str, pulse: str) -> Asked:
    """Return a request, cached per change, because hundreds of open pages ask for the same ones."""
    administration = page.sandbox.access.administration
    if not page.visitor.may_decide:
        return administration.request(request_id)
    state = page.request.app.state
    kept: tuple[str, dict[str, Asked]] = getattr(state, "looked_up", ("", {}))
    if kept[0] != pulse:
        kept = state.looked_up = (pulse, {})
    if request_id not in kept[1]:
        kept[1][request_id] = administration.request(request_id)
    return kept[1][request_id]


def _new_since(page: Page, administration: Administration) -> int:
    """Count the new rows of the list since it was read."""
    try:
        since = datetime.fromisoformat(page.query.get("since", ""))
        wanted, narrowed = requests_wanted(page.query, datetime.now(UTC))
        if wanted.errors or not page.visitor.may_decide or since.tzinfo is None:
            return 0
    except ValueError:
        return 0
    counts = administration.counts(replace(narrowed, newer_than=max(since, narrowed.newer_than or since)))
    return sum(counts.get(state, 0) for state in narrowed.states)


@router.get("/requests/{request_id}")
def detail(page: SignedInPage, request_id: str) -> Response:
    """Show one request with the facts for a decision."""
    return page.with_draft(f"/requests/{request_id}", lambda draft: detail_page(page, request_id, **_again(draft)))


def _again(draft: dict[str, str]) -> dict[str, Any]:
    """Return the kept values of the forms after an ended session; empty without a draft."""
    if not draft:
        return {}
    act = BUTTONS.get(draft.get("act", ""), "")
    pressed = f" before you pressed “{act}”" if act else ""
    lifetimes = {seconds for seconds, _ in LIFETIMES}
    chosen = draft.get("choice", "")
    return {
        "notice": f"Your session had ended{pressed}. Nothing was decided; your input is kept below.",
        "chosen": int(chosen) if chosen.isascii() and chosen.isdigit() and len(chosen) <= _DIGITS else 0,
        "reason": kept_reason(draft),
        "lifetime": draft["lifetime"] if draft.get("lifetime") in lifetimes else "",
        "note": draft.get("note", "")[:LONGEST_REASON],
    }


def detail_page(page: Page, request_id: str, *, status: int = 200, **more: Any) -> Response:
    """Return the page of a request; ``more`` are the previous input and its result."""
    sandbox, may = page.sandbox, page.visitor.may_decide
    pulse = pulse_of(sandbox)
    with page.administration() as administration:
        found = administration.request(request_id)
        context = {
            "found": found,
            "pulse": pulse,
            "words": decided_words(found.access, look=may),
            "resume": administration.resume_of(request_id),
            "history": administration.history_of(request_id),
            **(_for_deciders(sandbox, found) if may else _NOT_FOR_REQUESTERS),
        }
        offered = decision_targets(found.access, look=may) if found.state is RequestState.PENDING else ()
        holds = {state.value: found.state is state for state in RequestState}
        holds["noted"] = any(record.action is AuditAction.NOTED for record in context["history"])
        holds |= ended_holds(page) if may else {}
        holds["undone"] = holds.get("undone", False) and found.state is RequestState.PENDING
        seen, reaches, risks = _state(sandbox, found, offered) if may else ((), (), ())
        after = aftermath_of(page, about_request=found) if may else {}
    filled = {"chosen": 0, "reason": "", "lifetime": "", "note": "", "errors": {}, "notice": "", **more}
    if filled["chosen"] >= len(offered):
        filled["chosen"] = 0
    return page.render(
        "requests/detail.html",
        status=status,
        **context,
        **filled,
        choices=offered,
        seen=",".join(map(str, seen)),
        answers=[
            (answers_words(reach, DecisionScope.PERMANENT), answers_words(reach, DecisionScope.SESSION), reach.requests)
            for reach in reaches
        ],
        risks=risks,
        lifetimes=LIFETIMES,
        why_no_session=no_session(found),
        why_not=page.why_not,
        holds=holds,
        once=new_id(),
        **after,
    )


def aftermath_of(page: Page, *, about_request: Asked | None = None, decision_id: str = "") -> dict[str, Any]:
    """Return the message after a decision: its effect, and the undo.

    The address names the decision. A decision about another request shows no message.
    """
    about = decision_id or id_in_query(page.request, "about")
    if not about or page.query.get("done") not in _DECIDED:
        return {}
    try:
        done = page.sandbox.access.administration.aftermath(about)
    except DecisionUnknown:
        return {}
    if about_request is not None and about_request.id not in done.answered:
        return {}
    others = len(done.answered) - bool(done.decision.request_id)
    user = about_request.origin.user_id if about_request else ""
    said = f"{decision_words(done.decision, user)}; {answered_words(others)}."
    undo = ("Undo…", page.url(f"/decisions/{about}/undo")) if done.decision.ended_at is None else None
    return {"message_more": said, "message_link": undo}


def ended_holds(page: Page, decision_id: str = "") -> dict[str, bool]:
    """Return whether the given decision, or that of the address, is still ended, without a newer one."""
    about = decision_id or id_in_query(page.request, "about")
    administration = page.sandbox.access.administration
    try:
        found = administration.decision(about) if about else None
    except DecisionUnknown:
        found = None
    is_last = found is not None and administration.versions(found.access) == (found.generation,)
    return dict.fromkeys(_ENDED, is_last and found is not None and found.ended_at is not None)


def decision_words(decision: Decision, user: str = "") -> str:
    """Return effect, scope and duration of a decision in words; ``user`` is the user of its session."""
    until = f"until {decision.expires_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC" if decision.expires_at else ""
    access, session = decision.access, decision.session_key
    return effect_words(access, decision.effect, decision.scope, until=until, user=user, session=session)


def no_session(found: Asked) -> str:
    """Return the reason why a request cannot be approved for its session, or an empty text."""
    if not found.origin.session_key:
        return "It was made without a session."
    return "Its session has ended." if found.session_ended else ""


def _state(
    sandbox: Sandbox, found: Asked, offered: tuple[DecisionTarget, ...]
) -> tuple[tuple[int, ...], tuple[DecisionReach, ...], tuple[RiskAssessment, ...]]:
    """Return for each choice the version, the requests that its decision would answer, and its risk."""
    if not offered:
        return (), (), ()
    administration, targets = sandbox.access.administration, [choice.target for choice in offered]
    reaches = administration.reach(found.access, targets, own=found.id, session_key=found.origin.session_key)
    return administration.versions(found.access, targets), reaches, administration.risks(found.access, targets)


def _for_deciders(sandbox: Sandbox, found: Asked) -> dict[str, Any]:
    administration = sandbox.access.administration
    return {
        "declared": _declared(sandbox, found),
        "risk": administration.risk(found.access),
        "alike": administration.alike(found),
        "similar": administration.similar(found),
        # The decision that answered it can be a broader one.
        "decision": administration.decision(found.decision_id) if found.decision_id else None,
    }


def _declared(sandbox: Sandbox, found: Asked) -> tuple[SubjectRule, ...] | None:
    """Return the rules of the subject's manifest for the same resource; None without a manifest."""
    try:
        whole = subject_profile(sandbox, found.access.subject)
    except (ExtensionUnknown, InvalidInputError):
        return None
    if whole.manifest is None:
        return None
    same = (one for one in whole.declared if one.rule.resource_type is found.access.resource_type)
    return tuple(same)[:_MOST_DECLARED]
