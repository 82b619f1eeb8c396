"""Subjects (declarations, decisions, observations), shadow runs, explanations by layer, and the state of layers."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import Field

from democrai_sandbox.console.auth import ServedRequest, Visitor, holder, require_administrator, sandbox_of
from democrai_sandbox.console.health import aside, observer
from democrai_sandbox.errors.error_line import LONGEST
from democrai_sandbox.host import overview
from democrai_sandbox.host.explain.explainer import explain, explain_line
from democrai_sandbox.host.explain.explanation import AccessToExplain, AccessVerdict, LayerEffect
from democrai_sandbox.host.observations import AccessReason
from democrai_sandbox.host.overview import known_subjects, subject_profile
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.host.status import report
from democrai_sandbox.host.status_report import ReportArea, ReportLineState
from democrai_sandbox.manifests import ChangeEffect
from democrai_sandbox.policy import Subject, SubjectKind, chain_from_list
from democrai_sandbox.runtime.access_environment import serving

from . import openapi
from .openapi import operation

if TYPE_CHECKING:
    from democrai_sandbox.host.explain.explanation import Explanation

subjects = openapi.router("subjects")
Reader = Annotated[ServedRequest, Depends(holder(Scope.SUBJECTS_READ))]


class SubjectTotals(openapi.ApiAnswer):
    """Counts of one subject."""

    pending: int
    requests: int
    approvals: int
    denials: int


class SubjectEntry(openapi.ApiAnswer):
    """A subject in a list."""

    subject: openapi.Named
    source: openapi.Text
    declared: int
    counts: SubjectTotals
    is_broken: bool


class SubjectList(openapi.ApiAnswer):
    """All known subjects."""

    items: list[SubjectEntry]


class DeclaredRule(openapi.ApiAnswer):
    """A rule of a manifest, and the number of observed accesses that it covers."""

    rule: openapi.ManifestRule
    section: openapi.Text
    line: int
    is_observable: bool
    times_seen: int


class DecidedRule(openapi.ApiAnswer):
    """A decision in force, and the number of observed accesses that it covers."""

    decision: openapi.DecisionItem
    times_seen: int
    is_unused: bool


class SubjectObservation(openapi.ApiAnswer):
    """An access since this process started, its reason, and the rule or decision that covers it now."""

    resource_type: openapi.Text
    operation: openapi.Text
    target: openapi.Text
    result: openapi.Text
    reason: AccessReason
    """The rule or decision at that time; empty without one."""
    count: int
    first: datetime
    last: datetime
    declared: openapi.ManifestRule | None
    decision_id: str
    """Id of the decision in force now, which can be newer than the result."""


class SubjectDetail(openapi.ApiAnswer):
    """A subject in full."""

    subject: openapi.Named
    manifest_file: openapi.Text
    inherits: bool
    problems: list[openapi.Text]
    declared: list[DeclaredRule]
    approvals: list[DecidedRule]
    denials: list[DecidedRule]
    observed: list[SubjectObservation]
    requests: list[openapi.AccessRequest]
    unenforced: list[openapi.Text]
    """Rules that the kernel does not enforce for its worker and its children."""


@subjects.get("/subjects", **operation(Scope.SUBJECTS_READ))
def list_subjects(served: Reader) -> SubjectList:
    """List all known subjects: extensions, MCP servers, tools, and subjects with requests or decisions."""
    require_administrator(served.visitor)
    return SubjectList.model_validate({"items": known_subjects(served.sandbox)})


@subjects.get("/subjects/{kind}/{name:path}", **operation(Scope.SUBJECTS_READ, 404))
def show_subject(
    served: Reader, kind: SubjectKind, name: Annotated[str, Path(min_length=1, max_length=300)]
) -> SubjectDetail:
    """Show declarations, decisions and observed accesses of a subject side by side."""
    with serving(served.caller):
        found = subject_profile(served.sandbox, Subject(kind, name))
    observed = [
        SubjectObservation.of(
            seen.observed, declared=seen.declared, decision_id="" if seen.decided is None else seen.decided.id
        )
        for seen in found.observed
    ]
    return SubjectDetail.of(found, observed=observed)


shadows = openapi.router("shadows")
Starter = Annotated[ServedRequest, Depends(holder(Scope.REQUESTS_DECIDE))]


class NewShadow(openapi.ApiInput):
    """Subject and candidate manifest of a new shadow run."""

    subject: openapi.SubjectText
    manifest: str | dict[str, Any] = Field(description="The candidate: an object, or its text as in a file.")
    dry_run: bool = Field(default=False, description="Only check the candidate; the run in the answer then has no id.")


class Shadow(openapi.ApiAnswer):
    """A run."""

    id: str
    subject: openapi.Named
    is_running: bool
    started_at: datetime
    started_by: openapi.Text
    ended_at: datetime | None
    ended_by: openapi.Text


class ShadowEntry(Shadow):
    """A shadow run in a list."""

    would_be_denied: int
    """Number of current accesses that the candidate would deny."""
    would_be_allowed: int


class ShadowList(openapi.ApiAnswer):
    """All stored shadow runs."""

    items: list[ShadowEntry]


class ShadowFinding(openapi.ApiAnswer):
    """An access that the candidate decides differently."""

    resource_type: openapi.Text
    """The operation, or `import` for a sensitive import."""
    operation: openapi.Text
    target: openapi.Text
    count: int
    first_seen: datetime
    last_seen: datetime
    user_id: openapi.Text
    """The user of the last time."""
    chain: list[openapi.Text]


class ShadowChange(openapi.ApiAnswer):
    """A difference between the texts of the two manifests."""

    effect: ChangeEffect
    pointer: openapi.Text
    before: list[openapi.Text]
    after: list[openapi.Text]


class ShadowReport(Shadow):
    """A shadow run with its findings."""

    candidate: openapi.Text
    would_be_denied: list[ShadowFinding]
    would_be_allowed: list[ShadowFinding]
    other_denied: int
    """Number of accesses that are not listed."""
    other_allowed: int
    changes: list[ShadowChange]
    problem: openapi.Text
    """The reason why the manifests cannot be compared now; empty otherwise."""


@shadows.get("/shadows", **operation(Scope.SUBJECTS_READ))
def list_shadows(served: Reader) -> ShadowList:
    """List shadow runs, active ones first."""
    found = overview.list_shadows(served.sandbox, served.caller)
    return ShadowList(
        items=[ShadowEntry.of(one.run, would_be_denied=one.denied, would_be_allowed=one.allowed) for one in found]
    )


@shadows.post("/shadows", **operation(Scope.REQUESTS_DECIDE, 404, 409, body=True))
def start_shadow(served: Starter, order: NewShadow) -> Shadow:
    """Start a shadow run on all nodes. The current manifest still decides."""
    text = order.manifest if isinstance(order.manifest, str) else json.dumps(order.manifest, indent=2)
    with serving(served.caller):
        run = overview.start_shadow(
            served.sandbox, openapi.subject_named(order.subject), text, served.caller, dry_run=order.dry_run
        )
    return Shadow.model_validate(run)


@shadows.get("/shadows/{shadow_id}", **operation(Scope.SUBJECTS_READ, 404))
def show_shadow(served: Reader, shadow_id: openapi.Id) -> ShadowReport:
    """Show the observed accesses that the candidate would newly deny or allow, and the differences of the manifests."""
    found = overview.show_shadow(served.sandbox, shadow_id, served.caller)
    return ShadowReport.of(
        found.run,
        would_be_denied=found.denied,
        would_be_allowed=found.allowed,
        changes=found.changes,
        problem=found.problem,
    )


@shadows.post("/shadows/{shadow_id}/end", **operation(Scope.REQUESTS_DECIDE, 404))
def end_shadow(served: Starter, shadow_id: openapi.Id) -> Shadow:
    """Stop a shadow run; its findings are kept. An ended run stays unchanged."""
    with serving(served.caller):
        return Shadow.model_validate(overview.end_shadow(served.sandbox, shadow_id, served.caller))


explanations = openapi.router("explain")


class ExplainQuestion(openapi.ApiInput):
    """An access: subject, operation, target and user."""

    subject: openapi.SubjectText
    resource_type: str = Field(max_length=100)
    operation: str = Field(max_length=100)
    target: str = Field(max_length=8192)
    user_id: str = Field(default="", max_length=500)
    session_key: str = Field(default="", max_length=500)
    chain: list[openapi.SubjectText] = Field(
        default=[], max_length=50, description="The call chain around the subject, outermost first."
    )
    installing: bool = Field(default=False, description="Whether it is the install phase of an engine or extractor.")


class ExplainLine(openapi.ApiInput):
    """An error line, and its user."""

    line: str = Field(max_length=LONGEST, description="An error, a traceback, a line of the log or a problem document.")
    user_id: str = Field(default="", max_length=500)
    session_key: str = Field(default="", max_length=500)


class ExplainedLayer(openapi.ApiAnswer):
    """Answer of one layer."""

    layer: openapi.Text
    answer: LayerEffect
    text: openapi.Text
    decides: bool
    """Whether this layer decides."""
    decision_id: str
    request_id: str


class NearestRule(openapi.ApiAnswer):
    """The nearest rule, and the reason why it does not match."""

    rule: openapi.ManifestRule
    why: openapi.Text


class ChainLink(openapi.ApiAnswer):
    """One subject of the call chain."""

    subject: openapi.Named
    counts: bool
    """Whether its declarations count."""
    text: openapi.Text


class Explained(openapi.ApiAnswer):
    """Explanation of an access at this time."""

    subject: openapi.Named
    verdict: AccessVerdict
    words: openapi.Text
    layers: list[ExplainedLayer]
    access: openapi.AccessItem | None
    rule: openapi.ManifestRule | None
    nearest: NearestRule | None
    hint: openapi.Text
    entry: openapi.Members | None
    """The entry to add to `access` of the manifest."""
    file: openapi.Text
    """The manifest of the entry; empty without one."""
    kernel: openapi.Text
    """Disagreement of the kernel layer; empty without one."""
    chain: list[ChainLink]
    """The call chain, outermost first."""
    advice: list[openapi.Text]
    """Next actions, and who can take them."""


class ExplainedWord(openapi.ApiAnswer):
    """A word in a line with a separate meaning."""

    word: openapi.Text
    meaning: openapi.Text
    fix: openapi.Text


class ExplainedLine(openapi.ApiAnswer):
    """Explanation of an error line, and the current state."""

    code: str
    title: openapi.Text
    layer: str
    is_ours: bool
    """False for a symptom that the kernel layer or other causes can have."""
    meaning: openapi.Text
    cause: openapi.Text
    fix: openapi.Text
    word: ExplainedWord | None
    text: openapi.Text
    """The recognized part of the line."""
    detail: openapi.Text
    subject: openapi.Text
    operation: openapi.Text
    target: openapi.Text
    request_id: openapi.Text
    note: openapi.Text
    explanations: list[Explained]


@explanations.post("/explain", **operation(Scope.SUBJECTS_READ, body=True))
def explain_access(served: Reader, question: ExplainQuestion) -> Explained:
    """Explain an access: the result now, the layer that decides, and the change that would allow it."""
    require_administrator(served.visitor)
    subject, chain = openapi.subject_named(question.subject), chain_from_list(question.chain, pointer="/chain")
    rest = question.model_dump(exclude={"subject", "chain"})
    return _explained(explain(served.sandbox, AccessToExplain(subject, ancestors=chain, **rest)))


@explanations.post("/explain/line", **operation(Scope.SUBJECTS_READ, body=True))
def explain_error_line(served: Reader, given: ExplainLine) -> ExplainedLine:
    """Explain an error line and predict the same access now. Lines of other programs are refused."""
    require_administrator(served.visitor)
    found = explain_line(served.sandbox, given.line, user_id=given.user_id, session_key=given.session_key)
    entry = found.reading.entry
    return ExplainedLine.of(
        found.reading,
        **{name: getattr(entry, name) for name in ("code", "title", "is_ours", "meaning", "cause", "fix")},
        layer=entry.layer.value,
        note=found.note,
        explanations=[_explained(one) for one in found.explanations],
    )


def _explained(found: Explanation) -> Explained:
    layers = [
        ExplainedLayer.of(
            one,
            decision_id="" if one.decision is None else one.decision.id,
            request_id="" if one.request is None else one.request.id,
        )
        for one in found.layers
    ]
    return Explained.of(
        found,
        subject=found.question.subject,
        layers=layers,
        entry=None if found.entry is None else dict(found.entry),
        chain=list(reversed(found.links)),
    )


status = openapi.router("status")


class StatusLine(openapi.ApiAnswer):
    """One layer: its current state, and a fix for a problem."""

    name: str
    title: str
    area: ReportArea
    state: ReportLineState
    wanted: bool
    summary: openapi.Text
    fix: openapi.Text
    details: openapi.Members


class StatusReport(openapi.ApiAnswer):
    """Every layer at one time."""

    at: datetime
    version: str
    node: openapi.Text
    pid: int
    ok: bool
    lines: list[StatusLine]
    selftest: list[dict[str, Any]]


@status.get("/status", **operation(Scope.STATUS_READ))
async def show_status(
    request: Request, visitor: Annotated[Visitor, Depends(observer(Scope.STATUS_READ))]
) -> StatusReport:
    """Measure every layer: the guard, the database, events, the kernel's controls, extensions and workers."""
    require_administrator(visitor)
    found = await aside(partial(report, sandbox_of(request)))
    return StatusReport.model_validate(found.as_dict())
