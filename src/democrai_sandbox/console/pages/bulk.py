"""Deciding about many requests at once: first what each row would become, then what became of it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Form
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations
from starlette.responses import Response  # noqa: TC002 - the same

from democrai_sandbox.access.administration import LONGEST_REASON
from democrai_sandbox.access.outcomes import Outcome
from democrai_sandbox.access.values import RequestState
from democrai_sandbox.console.rendering import render, url
from democrai_sandbox.console.visitors import Visitor, require_fresh, sandbox_of
from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, RequestUnknown
from democrai_sandbox.host.wording import rule_words
from democrai_sandbox.policy import InvalidInputError, SandboxError
from democrai_sandbox.runtime.surroundings import serving

from .admitting import why_not
from .deciding import ACTS
from .requests import Who, no_session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.administration import Administration
    from democrai_sandbox.access.values import Request as Asked

router = APIRouter()
MOST = 500
"""Requests in one go."""
WORDS = MappingProxyType({"session": "Approve for their sessions", "permanent": "Approve permanently", "deny": "Deny"})
Text = Annotated[str, Form()]
Texts = Annotated[list[str], Form()]


class Row(NamedTuple):
    """One request, and what will come or has come of it."""

    asked: Asked
    words: str
    """The rule, for people."""
    state: str
    """``pending`` before; then ``done``, ``conflict``, ``skipped`` or ``error``."""
    remark: str = ""


@router.post("/requests/bulk")
def preview(request: Request, visitor: Who, act: Text = "", ids: Texts = []) -> Response:  # noqa: B006 - FastAPI copies
    """Show every request that the chosen act would be about; nothing is decided."""
    _check(visitor)
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        found = _with_alike(administration, ids)
    rows = [_previewed(one, act) for one in found[:MOST]]
    problem = _problem(act, rows)
    return _show(request, visitor, "preview", act, rows, problem=problem, left_out=max(0, len(found) - MOST))


@router.post("/requests/bulk/confirm")
def confirm(
    request: Request,
    visitor: Who,
    act: Text = "",
    ids: Texts = [],  # noqa: B006 - FastAPI copies
    reason: Text = "",
) -> Response:
    """Decide about each, and say what came of it."""
    _check(visitor)
    administration = sandbox_of(request).access.administration
    if act == "permanent":
        require_fresh(request, visitor, back=url(request, "/requests"))
    with serving(visitor.caller):
        found = _found(administration, ids[:MOST])
        problem = _problem(act, found)
        if not problem and len(reason) > LONGEST_REASON:
            problem = f"The reason has more than {LONGEST_REASON} characters."
        if problem:
            rows = [_previewed(one, act) for one in found]
            return _show(request, visitor, "preview", act, rows, problem=problem, reason=reason)
        answers = administration.decide_many([one.id for one in found], act, reason=reason.strip())
        after = {one.id: one for one in _found(administration, [one.id for one in found])}
    rows = [_came_of(after[one], answer) for one, answer in answers if one in after]
    return _show(request, visitor, "result", act, rows)


def _check(visitor: Visitor) -> None:
    if why_not(visitor):
        raise ExternalAccessAdminRequired(why_not(visitor))


def _problem(act: str, rows: list[Any]) -> str:
    if act not in ACTS:
        return "Choose what to do with the selected requests."
    return "" if rows else "No request is selected that still waits."


def _found(administration: Administration, ids: Iterable[str]) -> list[Asked]:
    found = []
    for one in dict.fromkeys(ids):
        try:
            found.append(administration.request(one))
        except (RequestUnknown, InvalidInputError):
            continue
    return found


def _with_alike(administration: Administration, ids: list[str]) -> list[Asked]:
    """Return the selected requests that wait, each followed by those of others for the same."""
    listed: dict[str, Asked] = {}
    for one in _found(administration, ids[:MOST]):
        if one.state is RequestState.PENDING and one.id not in listed and len(listed) <= MOST:
            listed[one.id] = one
            listed.update((other.id, other) for other in administration.alike(one))
    return list(listed.values())


def _rule(one: Asked) -> str:
    access = one.access
    return rule_words(access.subject, access.resource_type, access.operation, access.target)


def _previewed(one: Asked, act: str) -> Row:
    missing = no_session(one) if act == "session" else ""
    return Row(one, _rule(one), "skipped" if missing else "pending", missing)


def _came_of(one: Asked, answer: Outcome | SandboxError) -> Row:
    if isinstance(answer, Outcome):
        return Row(one, _rule(one), "skipped" if answer.skipped else "done", answer.skipped)
    return Row(one, _rule(one), "conflict" if isinstance(answer, DecisionConflict) else "error", str(answer))


def _show(
    request: Request, visitor: Visitor, step: str, act: str, rows: list[Row], *, problem: str = "", **more: Any
) -> Response:
    context: dict[str, Any] = {"act": act, "what": WORDS.get(act, ""), "rows": rows, "problem": problem}
    filled = {"left_out": 0, "reason": "", **more}
    done = sum(row.state == "done" for row in rows)
    status = 422 if problem else 200
    return render(request, f"requests/bulk_{step}.html", visitor=visitor, status=status, done=done, **context, **filled)
