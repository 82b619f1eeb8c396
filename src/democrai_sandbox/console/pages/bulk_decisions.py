"""Bulk decisions: preview, results and undo."""

from __future__ import annotations

from functools import partial
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Form, Query, Request, Response
from pydantic import BaseModel

from democrai_sandbox.access.administration import LONGEST_REASON, Outcome
from democrai_sandbox.access.store.decisions import newer_decision_text
from democrai_sandbox.access.values import DecisionEffect, DecisionScope, RequestState, new_id
from democrai_sandbox.console.auth import is_high_risk, own_path
from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, RequestUnknown
from democrai_sandbox.host import decisions
from democrai_sandbox.policy import InvalidInputError

from .decisions import ACTS, confirmation, read_versions
from .parameters import FILTERS, Page, PageIfSignedIn, SignedInPage, keep_draft, kept_reason
from .requests import no_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.administration import Administration
    from democrai_sandbox.access.values import Aftermath, AuditRecord, DecisionReach
    from democrai_sandbox.access.values import StoredRequest as Asked
    from democrai_sandbox.host.sandbox import Sandbox

    from .parameters import RefusedPassword

router = APIRouter()
MOST = 500
"""Maximum number of requests per bulk decision."""
_MOST_LEFT = 50
"""Maximum number of undecided requests in the address of the result; others are counted."""
_LONGEST_RANGE = 20_000
"""Maximum number of audit records to search for the decisions of a bulk decision."""
WORDS = MappingProxyType({"session": "Approve for the sessions", "permanent": "Approve permanently", "deny": "Deny"})
DONE = MappingProxyType({"session": "Approved for the sessions", "permanent": "Approved permanently", "deny": "Denied"})
_FOREVER = decisions.end_words(DecisionEffect.APPROVAL, DecisionScope.PERMANENT)
_SESSION = decisions.end_words(DecisionEffect.APPROVAL, DecisionScope.SESSION)
EFFECTS = MappingProxyType(
    {
        "session": f"Each is approved only for its own session, {_SESSION}",
        "permanent": f"Each is approved for every user and session, {_FOREVER}",
        "deny": "Each is denied for every user and session, "
        + decisions.end_words(DecisionEffect.DENIAL, DecisionScope.PERMANENT),
    }
)
_UNDONE = ("undone", "undone_partly", "undone_some")
"""Message codes of an undo, the strongest last."""
UNSELECTED = "Select at least one pending request. Nothing was decided."
Texts = Annotated[list[str], Query()]


class BulkRow(NamedTuple):
    """One request with its expected or actual result."""

    asked: Asked
    words: str
    """The rule in words."""
    state: str
    """State of the request; ``skipped``, ``conflict`` or ``error`` if it was not decided."""
    remark: str = ""


class BulkForm(BaseModel):
    """Submitted form."""

    act: str = ""
    ids: list[str] = []
    seen: list[str] = []
    """The shown version of each request."""
    reason: str = ""
    password: str = ""


class BulkResultQuery(BaseModel):
    """Address of the results: the audit records, and the undecided requests."""

    act: str = ""
    after: int = 0
    last: int = 0
    """Numbers of the audit record before the first and of the last decision."""
    left: list[str] = []
    more: int = 0


@router.get("/requests/bulk")
def preview(page: SignedInPage, act: str = "", ids: Texts = []) -> Response:  # noqa: B006 - FastAPI copies
    """Show every request that the chosen action would decide; nothing is decided."""
    _check(page)
    with page.administration() as administration:
        found = _with_alike(administration, ids)
    shown = partial(_preview, page, act, found[:MOST], left_out=max(0, len(found) - MOST))
    return page.with_draft("/requests/bulk", lambda draft: shown(reason=kept_reason(draft)))


@router.post("/requests/bulk/confirm")
def confirm(request: Request, page: PageIfSignedIn, sent: Annotated[BulkForm, Form()]) -> Response:
    """Decide each request, and redirect to the results."""
    if page is None:
        back = own_path(request, f"/requests/bulk?{request.url.query}")
        return keep_draft(request, "/requests/bulk", {"reason": sent.reason}, back=back)
    _check(page)
    store = page.sandbox.access.store
    with page.administration() as administration:
        found = _found(administration, sent.ids[:MOST])
    versions = [read_versions(text, 1) for text in sent.seen]
    seen = {one: version[0] for one, version in zip(sent.ids, versions, strict=False) if version}
    problem = _problem(sent, found, seen)
    accesses = [one.access for one in found]
    refused = None
    if not problem and sent.act == "permanent" and page.needs_password(accesses):
        refused = page.refused_password(sent.password)
    if problem or refused:
        return _preview(page, sent.act, found, problem=problem, refused=refused, reason=sent.reason)
    bulk, before = new_id(), store.pulse()[1]
    with page.administration() as administration:
        answers = administration.decide_many(
            [one.id for one in found], sent.act, reason=sent.reason.strip(), expected=seen, bulk=bulk
        )
    left = [one for one, answer in answers if not isinstance(answer, Outcome) or answer.decision is None]
    place: dict[str, Any] = {"act": sent.act, "after": before, "last": store.pulse()[1], "left": left[:_MOST_LEFT]}
    return page.redirect(f"/requests/bulk/{bulk}", **place, more=len(left[_MOST_LEFT:]) or None)


@router.get("/requests/bulk/{bulk}")
def result(page: SignedInPage, bulk: str, wanted: Annotated[BulkResultQuery, Query()]) -> Response:
    """Show the result for each request. Reloading does not decide again."""
    _check(page)
    with page.administration() as administration:
        records = _records(page.sandbox, bulk, wanted)
        made = [administration.decision(record.after["decision"]["id"]) for record in records]
        answered = [one for record in records for one in record.after["requests"]]
        rows = [_row(one, wanted.act) for one in _found(administration, answered)]
        # They may have been undone since.
        rows = [row._replace(remark="undone since") if row.state == RequestState.PENDING else row for row in rows]
        left = [_left(one, wanted.act) for one in _found(administration, wanted.left[:_MOST_LEFT])]
        live = [administration.aftermath(one.id) for one in made if one.ended_at is None]
        over = bool(made) and not live
        kept = [(done.decision, _obstacle(page, done)) for done in live]
    context: dict[str, Any] = {
        "act": wanted.act,
        "what": DONE.get(wanted.act, "Decided"),
        "effect": EFFECTS.get(wanted.act, ""),
        "rows": [*rows, *left],
        "done": len(rows),
        "total": len(rows) + len(left) + max(0, wanted.more),
        "more": max(0, wanted.more),
        "undoable": sum(not why for _, why in kept),
        "kept": [(one, why) for one, why in kept if why],
        "over": over,
        "holds": {
            "undone": over and all(row.asked.state is RequestState.PENDING for row in rows),
            "undone_partly": over,
            "undone_some": any(why for _, why in kept),
        },
        "undo": page.url(f"/requests/bulk/{bulk}/undo", **wanted.model_dump()),
    }
    return confirmation(page, "requests/bulk_result.html", None, **context)


@router.post("/requests/bulk/{bulk}/undo")
def undo(page: SignedInPage, bulk: str, wanted: Annotated[BulkResultQuery, Query()]) -> Response:
    """Undo the decisions of one bulk decision, and no others."""
    _check(page)
    done = "undone"
    with page.administration():
        for record in reversed(_records(page.sandbox, bulk, wanted)):
            came_to = _undone(page, record.after["decision"]["id"])
            done = max(done, came_to, key=_UNDONE.index)
    return page.redirect(f"/requests/bulk/{bulk}", done=done, **wanted.model_dump())


def _undone(page: Page, decision_id: str) -> str:
    """Undo one decision; return the message code."""
    done = page.sandbox.access.administration.aftermath(decision_id)
    if done.decision.ended_at is not None:
        return "undone"
    if _obstacle(page, done):
        return "undone_some"
    try:
        undone = page.decide(decisions.SubmittedDecision("undo", decision_id))
    except DecisionConflict:
        return "undone_some"
    return "undone_partly" if undone.kept else "undone"


def _obstacle(page: Page, done: Aftermath) -> str:
    """Return the reason why a decision is not undone together with others, or an empty text."""
    if done.newer is not None:
        return f"{newer_decision_text(done.newer)}."
    _, approvals = decisions.restored_decisions(page.sandbox.access.administration, done)
    if not approvals or not page.needs_password(approvals):
        return ""
    back = "; ".join(decisions.decided_words(one) for one in approvals)
    high = "of high risk, " if any(map(is_high_risk, approvals)) else ""
    return f"undoing it puts a permanent approval back in force, {high}which takes your password: {back}"


def _check(page: Page) -> None:
    if page.why_not:
        raise ExternalAccessAdminRequired(page.why_not)


def _problem(sent: BulkForm, found: list[Asked], seen: dict[str, int]) -> str:
    if sent.act not in ACTS:
        return "Choose what to do with the selected requests."
    if not found:
        return UNSELECTED
    if any(one.id not in seen for one in found):
        return "The form has no version. This is the current state; nothing was decided."
    if len(sent.reason) > LONGEST_REASON:
        return f"The reason has more than {LONGEST_REASON} characters."
    return ""


def _found(administration: Administration, ids: Iterable[str]) -> list[Asked]:
    found = []
    for one in dict.fromkeys(ids):
        try:
            found.append(administration.request(one))
        except (RequestUnknown, InvalidInputError):
            continue
    return found


def _with_alike(administration: Administration, ids: list[str]) -> list[Asked]:
    """Return the selected pending requests, each followed by other requests for the same access."""
    listed: dict[str, Asked] = {}
    for one in _found(administration, ids[:MOST]):
        if one.state is RequestState.PENDING and one.id not in listed and len(listed) <= MOST:
            listed[one.id] = one
            listed.update((other.id, other) for other in administration.alike(one))
    return list(listed.values())


def _records(sandbox: Sandbox, bulk: str, wanted: BulkResultQuery) -> list[AuditRecord]:
    """Return the audit records of one bulk decision."""
    first, last = max(0, wanted.after), min(wanted.last, wanted.after + _LONGEST_RANGE)
    if first >= last:
        return []
    within = takewhile(lambda record: record.sequence <= last, sandbox.access.store.audit_rows(first))
    return [record for record in within if record.after.get("bulk") == bulk]


def _row(one: Asked, act: str) -> BulkRow:
    return BulkRow(one, decisions.decided_words(one.access, may=act != "deny"), one.state.value)


def _previewed(one: Asked, act: str) -> BulkRow:
    missing = no_session(one) if act == "session" else ""
    return _row(one, act)._replace(state="skipped", remark=missing) if missing else _row(one, act)


def _left(one: Asked, act: str) -> BulkRow:
    """Return the row of an undecided request, with the reason."""
    if one.state is not RequestState.PENDING:
        told = f"{one.state.value.replace('_', ' ')} by {one.decided_by}" if one.decided_by else one.state.value
        return _row(one, act)._replace(state="conflict", remark=told)
    row = _previewed(one, act)
    return row if row.remark else row._replace(remark="another decision about the same access blocks it")


def _preview(
    page: Page, act: str, found: list[Asked], *, problem: str = "", refused: RefusedPassword | None = None, **more: Any
) -> Response:
    rows = [_previewed(one, act) for one in found]
    deciding = [row.asked for row in rows if row.state == RequestState.PENDING.value]
    if not problem:
        problem = (
            "" if act in ACTS and deciding else UNSELECTED if act in ACTS else "Choose what to do with the requests."
        )
    with page.administration() as administration:
        versions = administration.versions_of(deciding)
        reach: DecisionReach = administration.reach_of(deciding)
    scope = DecisionScope.SESSION if act == "session" else DecisionScope.PERMANENT
    filters = {name: value for name, value in page.query.items() if name in FILTERS}
    selection = {"act": act, "ids": page.query.getlist("ids")}
    accesses = [one.access for one in deciding]
    context: dict[str, Any] = {
        "act": act,
        "what": WORDS.get(act, ""),
        "effect": EFFECTS.get(act, ""),
        "answers": decisions.answers_words(reach, scope),
        "rows": rows,
        "deciding": [(one.id, versions[one.id]) for one in deciding],
        "problem": problem,
        "back": page.url("/requests", **filters),
        "action": page.url("/requests/bulk/confirm", **selection, **filters),
        "takes_password": act == "permanent" and bool(deciding) and page.needs_password(accesses),
        "trouble": refused.text if refused else "",
        "left_out": 0,
        "reason": "",
        **more,
    }
    answer = confirmation(page, "requests/bulk_preview.html", refused, **context)
    if problem:
        answer.status_code = 422
    return answer
