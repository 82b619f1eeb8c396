"""Subjects (declarations, decisions, observed accesses), shadow runs, explanations, and the status of every layer."""

from __future__ import annotations

import json
import re
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from democrai_sandbox import policy
from democrai_sandbox.access.administration import LONGEST_REASON
from democrai_sandbox.access.values import AccessTuple, DecisionEffect
from democrai_sandbox.console.render import code, redirect, visible_text
from democrai_sandbox.errors import DecisionConflict, ErrorUnknown, ExtensionBroken, ExtensionUnknown
from democrai_sandbox.errors.catalogue.pages import plain as plain_text
from democrai_sandbox.host import overview
from democrai_sandbox.host.decisions import SubmittedDecision, UnrequestedAccess
from democrai_sandbox.host.explain.explainer import explain, explain_line
from democrai_sandbox.host.explain.explanation import AccessToExplain
from democrai_sandbox.host.overview import known_subjects, subject_profile
from democrai_sandbox.host.status import report
from democrai_sandbox.host.status_report import ReportArea
from democrai_sandbox.kernel.status import plain
from democrai_sandbox.runtime.access_environment import serving
from democrai_sandbox.runtime.store import EntryExists

from .decisions import STATELESS, ApprovalForm, UnconfirmedDecision, read_versions, reason_problem, spelled_out
from .parameters import AdministratorPage, Page, PageIfSignedIn, administrator, keep_draft, kept_reason, parsed_subject

if TYPE_CHECKING:
    from democrai_sandbox.host.explain.explanation import Explanation
    from democrai_sandbox.host.status_report import ReportLine

    from .parameters import RefusedPassword

router = APIRouter()

MOST_LISTED = 500


@router.get("/subjects")
def list_subjects(page: AdministratorPage) -> HTMLResponse:
    """List all known subjects."""
    kind, text = page.choice("kind", policy.SubjectKind), page.text("text")
    everybody = known_subjects(page.sandbox)
    named = [one for one in everybody if text.casefold() in str(one.subject).casefold()]
    found = [one for one in named if kind in (None, one.subject.kind)]
    numbers = Counter(one.subject.kind for one in named)
    return page.render(
        "subjects/list.html",
        subjects=found[:MOST_LISTED],
        left_out=max(0, len(found) - MOST_LISTED),
        # Value, label and number of each existing kind, after one entry for all.
        tabs=[("", "All", len(named)), *((one.value, f"{one.value}s", number) for one, number in numbers.items())],
        kind=kind,
        text=text,
    )


@router.get("/subjects/{kind}/{name:path}")
def show_subject(page: AdministratorPage, kind: str, name: str) -> HTMLResponse:
    """Show declarations, decisions and observations of one subject side by side."""
    subject = policy.Subject(kind, name)  # type: ignore[arg-type] # text is taken and checked
    with serving(page.caller):
        found = subject_profile(page.sandbox, subject)
    return page.render(
        "subjects/show.html",
        subject=subject,
        portrait=found,
        unused_days=page.sandbox.settings.console.unused_days,
        is_extension=kind in {"module", "engine", "extractor"} and found.manifest is not None,
    )


_MOST_SHOWN = 20


@router.get("/shadows")
def list_shadows(page: AdministratorPage) -> Response:
    """List shadow runs, with a form to start one."""
    return _shadow_list(page, subject=page.text("subject"))


@router.post("/shadows")
def start_shadow(
    page: AdministratorPage, subject: Annotated[str, Form()] = "", manifest: Annotated[str, Form()] = ""
) -> Response:
    """Start a shadow run; an invalid candidate is shown again with its problems."""
    try:
        named = parsed_subject(subject.strip())
        with serving(page.caller):
            run = overview.start_shadow(page.sandbox, named, manifest, page.caller)
    except policy.InvalidInputError as error:
        return _shadow_list(page, subject=subject, manifest=manifest, wrong=_shadow_problems(error), status=422)
    except (ExtensionUnknown, ExtensionBroken, EntryExists) as error:
        status = 409 if isinstance(error, EntryExists) else 422
        return _shadow_list(page, subject=subject, manifest=manifest, wrong={"subject": [str(error)]}, status=status)
    return page.redirect(f"/shadows/{run.id}", done="shadow_started")


@router.get("/shadows/{shadow_id}")
def show_shadow(page: AdministratorPage, shadow_id: str) -> Response:
    """Show the accesses that a candidate would newly deny or allow, and the differences of the manifests."""
    found = overview.show_shadow(page.sandbox, shadow_id, page.caller)
    running = found.run.is_running
    holds = {"shadow_started": running, "shadow_ended": not running}
    return page.render("shadows/show.html", found=found, run=found.run, code=code, holds=holds)


@router.post("/shadows/{shadow_id}/end")
def end_shadow(page: AdministratorPage, shadow_id: str) -> Response:
    """Stop a shadow run; its findings are kept."""
    with serving(page.caller):
        overview.end_shadow(page.sandbox, shadow_id, page.caller)
    return page.redirect(f"/shadows/{shadow_id}", done="shadow_ended")


def _shadow_list(
    page: Page, *, subject: str = "", manifest: str = "", wrong: dict[str, list[str]] | None = None, status: int = 200
) -> Response:
    sandbox = page.sandbox
    context: dict[str, Any] = {
        "runs": overview.list_shadows(sandbox, page.caller),
        "subjects": [str(one.subject) for one in sandbox.runtime.extensions if not one.is_broken],
        "subject": subject,
        "manifest": manifest,
        "wrong": wrong or {},
    }
    return page.render("shadows/list.html", status=status, **context)


def _shadow_problems(error: policy.InvalidInputError) -> dict[str, list[str]]:
    """Return the problems by field, all of them for the manifest."""
    wrong: dict[str, list[str]] = {}
    for problem in error.problems:
        of_subject = problem.pointer.startswith("/subject")
        where = "" if of_subject else problem.pointer.removeprefix("/manifest")
        hint = f" Did you mean {problem.suggestion}?" if problem.suggestion else ""
        listed = wrong.setdefault("subject" if of_subject else "manifest", [])
        if len(listed) < _MOST_SHOWN:
            listed.append(f"{where}{': ' if where else ''}{problem.message}{hint}")
    return wrong


_MOST_SUGGESTED = 300
_LONGEST_TARGET = 8000
_LINE_ENDS = re.compile(r"[\r\n\t]")
_BETWEEN = re.compile(r"\s*(?:->|→|,)\s*|\s+")


class ExplainForm(NamedTuple):
    """Values of the form."""

    subject: str = ""
    access: str = "network:receive"
    """Resource type and operation, such as ``network:receive``."""
    target: str = ""
    user: str = ""
    session: str = ""
    chain: str = ""
    """The enclosing subjects, outermost first, separated by arrows or commas."""

    @property
    def is_empty(self) -> bool:
        """Whether the form is empty."""
        return not (self.subject and self.target)


@router.get("/explain")
def show_explanation(page: AdministratorPage) -> Response:
    """Show the form and the explanation for the address. No request is filed."""
    asked = _asked(page)
    wrong: dict[str, str] = {}
    answer: Explanation | None = None
    line = page.query.get("line", "").strip()[:_LONGEST_TARGET]
    if line:
        return _line_page(page, asked, line)
    if not asked.is_empty:
        try:
            rule = read_rule(asked.subject, asked.access, asked.target, normal=False)
            chain = policy.chain_from_list(list(filter(None, _BETWEEN.split(asked.chain))), pointer="/chain")
            access = (rule.subject, rule.resource_type, rule.operation, rule.target)
            with serving(page.caller):
                answer = explain(page.sandbox, AccessToExplain(*access, asked.user, asked.session, chain))
        except policy.InvalidInputError as error:
            wrong = by_field(error)
    return _page(page, asked, answer=answer, wrong=wrong)


class DirectDecisionForm(ApprovalForm):
    """Submitted form."""

    subject: str = ""
    access: str = ""
    target: str = ""
    effect: str = ""
    confirmed: str = ""


@router.post("/explain/decide")
def decide(request: Request, page: PageIfSignedIn, sent: Annotated[DirectDecisionForm, Form()]) -> Response:
    """Approve or deny an access without a request, after a confirmation."""
    asked = ExplainForm(sent.subject.strip(), sent.access, sent.target.strip())
    if page is None:
        return keep_draft(request, "/explain", {"reason": sent.reason}, back=_address(request, asked))
    administrator(page)
    try:
        rule = read_rule(asked.subject, asked.access, asked.target)
        if sent.effect not in tuple(DecisionEffect):
            raise policy.InvalidInputError.of("choose approve or deny", pointer="/access")
        chosen = DecisionEffect(sent.effect)
        if too_long := reason_problem(sent.reason):
            raise policy.InvalidInputError.of(too_long, pointer="/reason")
    except policy.InvalidInputError as error:
        return _page(page, asked, wrong=by_field(error), status=422)
    takes_password = chosen is DecisionEffect.APPROVAL and page.needs_password([rule])
    if not sent.confirmed:

        def ask(draft: dict[str, str]) -> Response:
            sent.reason = sent.reason or kept_reason(draft)
            return _ask(page, asked, sent, rule, takes_password=takes_password)

        return page.with_draft("/explain", ask)
    versions = read_versions(sent.seen, 1)
    if not versions:
        raise DecisionConflict(STATELESS)
    if takes_password and (refused := page.refused_password(sent.password)):
        return _ask(page, asked, sent, rule, takes_password=True, refused=refused)
    act, done = ("permanent", "approved") if chosen is DecisionEffect.APPROVAL else ("deny", "denied")
    about = UnrequestedAccess(rule.subject, rule.resource_type, rule.operation, rule.target)
    outcome = page.decide(SubmittedDecision(act, about, reason=sent.reason.strip(), expected=versions[0]))
    if outcome.decision is None:
        return page.redirect("/explain", **asked._asdict())
    return page.redirect(f"/decisions/{outcome.decision.id}", done=done)


def _ask(
    page: Page,
    asked: ExplainForm,
    sent: DirectDecisionForm,
    rule: AccessTuple,
    *,
    takes_password: bool,
    refused: RefusedPassword | None = None,
) -> Response:
    """Show the effect of a decision, and ask for confirmation."""
    effect, seen = DecisionEffect(sent.effect), sent.seen
    if not refused:
        with page.administration() as administration:
            (version,) = administration.versions(rule, [rule.target])
        seen = str(version)
    context: dict[str, Any] = {
        "rule": rule,
        "asked": asked,
        "effect": effect.value,
        "reason": sent.reason,
        "longest": LONGEST_REASON,
        "seen": seen,
        "takes_password": takes_password,
    }
    decision = UnconfirmedDecision(rule, rule.target, effect)
    return spelled_out(page, "explain/confirm.html", decision, refused, **context)


def read_rule(subject: str, access: str, target: str, *, normal: bool = True) -> AccessTuple:
    """Return the access of a form, or refuse it with all problems by field.

    Without ``normal`` the target is not normalized, because that is part of an explanation.
    """
    problems: list[policy.Problem] = []
    who = None
    try:
        who = parsed_subject(subject)
    except policy.InvalidInputError as error:
        problems += error.problems
    kind, _, act = access.partition(":")
    known = kind in tuple(policy.ResourceType) and act in policy.VALID_OPERATIONS[policy.ResourceType(kind)]
    try:
        if not known:
            raise policy.InvalidInputError.of("choose one of the list", pointer="/access")
        if len(target) > _LONGEST_TARGET:
            raise policy.InvalidInputError.of(f"longer than {_LONGEST_TARGET:,} characters", pointer="/target")
        target = _normal(policy.ResourceType(kind), target) if normal else target
    except policy.InvalidInputError as error:
        problems += error.problems
    if problems or who is None:
        raise policy.InvalidInputError(problems)
    return AccessTuple(who, policy.ResourceType(kind), policy.Operation(act), target)


def by_field(error: policy.InvalidInputError) -> dict[str, str]:
    """Return the problems by field."""
    wrong: dict[str, str] = {}
    for problem in error.problems:
        name = problem.pointer.strip("/").partition("/")[0]
        field = name if name in {"subject", "access", "reason", "chain"} else "target"
        hint = f" Did you mean {problem.suggestion}?" if problem.suggestion else ""
        wrong[field] = f"{wrong[field]}; {problem.message}{hint}" if field in wrong else f"{problem.message}{hint}"
    return wrong


def _normal(resource_type: policy.ResourceType, target: str) -> str:
    try:
        return policy.normalise_target(resource_type, target)
    except policy.InvalidInputError as error:
        raise policy.InvalidInputError(problem.moved("/target") for problem in error.problems) from None


def _asked(page: Page) -> ExplainForm:
    access = page.text("access")
    if not access and (resource := page.text("resource_type")):
        access = f"{resource}:{page.text('operation')}"
    target = page.query.get("target", "").strip()[: _LONGEST_TARGET + 1]
    subject, user, session, chain = map(page.text, ("subject", "user", "session", "chain"))
    return ExplainForm(subject, access or ExplainForm().access, target, user, session, chain)


def _address(request: Request, asked: ExplainForm) -> str:
    return str(redirect(request, "/explain", **asked._asdict()).headers["location"])


def _line_page(page: AdministratorPage, asked: ExplainForm, line: str) -> Response:
    """Explain an error line, and offer the accesses in it."""
    try:
        with serving(page.caller):
            found = explain_line(page.sandbox, line, user_id=asked.user, session_key=asked.session)
    except ErrorUnknown as error:
        return _page(page, asked, wrong={"line": str(error)}, line=line)
    questions = [(one, _address(page.request, _asked_for(one, asked))) for one in found.explanations]
    return _page(page, asked, wrong={}, line=line, told=found, questions=questions)


def _asked_for(found: Explanation, asked: ExplainForm) -> ExplainForm:
    question = found.question
    access = f"{question.resource_type}:{question.operation}"
    around = " -> ".join(map(str, question.ancestors))
    return ExplainForm(str(question.subject), access, question.target, asked.user, asked.session, around)


def _shown(text: str) -> str:
    """Return a text for a form field, or an empty text if it contains invisible characters, which cannot be marked."""
    one_line = _LINE_ENDS.sub(" ", text)
    return text if visible_text(one_line) == one_line else ""


def _page(
    page: AdministratorPage,
    asked: ExplainForm,
    *,
    answer: Explanation | None = None,
    wrong: dict[str, str],
    status: int = 200,
    **more: Any,
) -> Response:
    accesses = [
        (f"{kind}:{act}", f"{kind.replace('_', ' ')}: {act}")
        for kind in policy.ResourceType
        for act in policy.VALID_OPERATIONS[kind]
    ]
    entry = json.dumps(dict(answer.entry), indent=2, ensure_ascii=False) if answer and answer.entry else ""
    context = {
        "code": code,
        "entry": entry,
        "asked": ExplainForm(*map(_shown, asked)),
        "answer": answer,
        "can_be_shown": answer is None or answer.access is None or bool(_shown(answer.access.target)),
        "wrong": wrong,
        "subjects": [str(one.subject) for one in known_subjects(page.sandbox)[:_MOST_SUGGESTED]],
        "accesses": accesses,
        "longest": _LONGEST_TARGET,
        "line": "",
        "told": None,
        "questions": (),
        "plain": plain_text,
        **more,
    }
    context["line"] = _shown(context["line"])
    return page.render("explain/show.html", status=422 if wrong else status, **context)


_AREAS = (
    (ReportArea.GUARD, "Guard", "Restricts extensions in this interpreter to their declared access."),
    (ReportArea.DECISIONS, "Decisions", "Stores approvals and denials, and sends changes to all nodes."),
    (
        ReportArea.KERNEL,
        "Kernel layer",
        "Restricts this process and its children in the kernel, if the machine supports it.",
    ),
    (ReportArea.RUNTIME, "Runtime", "Loaded extensions and running work."),
)


_ELSEWHERE = MappingProxyType({"extensions": "extensions", "tasks": "tasks"})
"""Pages with more about a line."""


@router.get("/status")
def show(page: AdministratorPage) -> HTMLResponse:
    """Show the current state."""
    found = report(page.sandbox)
    areas = [(title, words, found.of(area)) for area, title, words in _AREAS]
    return page.render(
        "status/show.html",
        report=found,
        areas=areas,
        troubled=[line for line in found.lines if not line.is_well],
        details_of=details_of,
        elsewhere=_ELSEWHERE,
        holds={"self_test_done": True},
    )


@router.post("/status/self-test")
def test_again(page: AdministratorPage) -> RedirectResponse:
    """Run the self-test again."""
    page.sandbox.kernel.selftest()
    return page.redirect("/status", done="self_test_done")


def details_of(line: ReportLine) -> list[tuple[str, str]]:
    """Return the non-empty facts of a line, flattened and in words."""
    found: list[tuple[str, str]] = []
    for name, value in plain(line.details).items():
        found += _flat(name.replace("_", " "), value)
    return found


def _flat(name: str, value: object) -> list[tuple[str, str]]:
    if value is None or value in ("", [], {}):
        return []
    if isinstance(value, bool):
        return [(name, "yes" if value else "no")]
    if isinstance(value, dict):
        return [pair for inner, held in value.items() for pair in _flat(f"{name}: {inner}", held)]
    if isinstance(value, list):
        return [(name, "\n".join(map(_in_words, value)))]
    return [(name, str(value))]


def _in_words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {held}" for name, held in value.items() if held not in (None, ""))
    return str(value)
