"""Subjects: declarations, decisions and observed accesses; and shadow runs of candidate manifests."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import Field

from democrai_sandbox.console.auth import Visitor, holder, require_administrator, sandbox_of
from democrai_sandbox.host import shadow_runs
from democrai_sandbox.host.observations import AccessReason
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.host.subject_overview import known_subjects, subject_profile
from democrai_sandbox.manifests import ChangeEffect
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.access_environment import serving

from . import schemas
from .openapi import operation, router
from .schemas import ApiAnswer, ApiInput, Id, Named, SubjectText, Text, subject_named

subjects = router("subjects")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]


class SubjectTotals(ApiAnswer):
    """Counts of one subject."""

    pending: int
    requests: int
    approvals: int
    denials: int


class SubjectEntry(ApiAnswer):
    """A subject in a list."""

    subject: Named
    source: Text
    declared: int
    counts: SubjectTotals
    is_broken: bool


class SubjectList(ApiAnswer):
    """All known subjects."""

    items: list[SubjectEntry]


class DeclaredRule(ApiAnswer):
    """A rule of a manifest, and the number of observed accesses that it covers."""

    rule: schemas.ManifestRule
    section: Text
    line: int
    is_observable: bool
    times_seen: int


class DecidedRule(ApiAnswer):
    """A decision in force, and the number of observed accesses that it covers."""

    decision: schemas.DecisionItem
    times_seen: int
    is_unused: bool


class SubjectObservation(ApiAnswer):
    """An access since this process started, its reason, and the rule or decision that covers it now."""

    resource_type: Text
    operation: Text
    target: Text
    result: Text
    reason: AccessReason
    """The rule or decision at that time; empty without one."""
    count: int
    first: datetime
    last: datetime
    declared: schemas.ManifestRule | None
    decision_id: str
    """Id of the decision in force now, which can be newer than the result."""


class SubjectDetail(ApiAnswer):
    """A subject in full."""

    subject: Named
    manifest_file: Text
    inherits: bool
    problems: list[Text]
    declared: list[DeclaredRule]
    approvals: list[DecidedRule]
    denials: list[DecidedRule]
    observed: list[SubjectObservation]
    requests: list[schemas.AccessRequest]
    unenforced: list[Text]
    """Rules that the kernel does not enforce for its worker and its children."""


@subjects.get("/subjects", **operation(Scope.SUBJECTS_READ))
def list_subjects(request: Request, visitor: Reader) -> SubjectList:
    """List all known subjects: extensions, MCP servers, tools, and subjects with requests or decisions."""
    require_administrator(visitor)
    return SubjectList.model_validate({"items": known_subjects(sandbox_of(request))})


@subjects.get("/subjects/{kind}/{name:path}", **operation(Scope.SUBJECTS_READ, 404))
def show_subject(
    request: Request, kind: SubjectKind, name: Annotated[str, Path(min_length=1, max_length=300)], visitor: Reader
) -> SubjectDetail:
    """Show declarations, decisions and observed accesses of a subject side by side."""
    with serving(visitor.caller):
        found = subject_profile(sandbox_of(request), Subject(kind, name))
    observed = [
        SubjectObservation.of(
            seen.observed, declared=seen.declared, decision_id="" if seen.decided is None else seen.decided.id
        )
        for seen in found.observed
    ]
    return SubjectDetail.of(found, observed=observed)


shadows = router("shadows")
Starter = Annotated[Visitor, Depends(holder(Scope.REQUESTS_DECIDE))]


class NewShadow(ApiInput):
    """Subject and candidate manifest of a new shadow run."""

    subject: SubjectText
    manifest: str | dict[str, Any] = Field(description="The candidate: an object, or its text as in a file.")
    dry_run: bool = Field(default=False, description="Only check the candidate; the run in the answer then has no id.")


class Shadow(ApiAnswer):
    """A run."""

    id: str
    subject: Named
    is_running: bool
    started_at: datetime
    started_by: Text
    ended_at: datetime | None
    ended_by: Text


class ShadowEntry(Shadow):
    """A shadow run in a list."""

    would_be_denied: int
    """Number of current accesses that the candidate would deny."""
    would_be_allowed: int


class ShadowList(ApiAnswer):
    """All stored shadow runs."""

    items: list[ShadowEntry]


class ShadowFinding(ApiAnswer):
    """An access that the candidate decides differently."""

    resource_type: Text
    """The operation, or `import` for a sensitive import."""
    operation: Text
    target: Text
    count: int
    first_seen: datetime
    last_seen: datetime
    user_id: Text
    """The user of the last time."""
    chain: list[Text]


class ShadowChange(ApiAnswer):
    """A difference between the texts of the two manifests."""

    effect: ChangeEffect
    pointer: Text
    before: list[Text]
    after: list[Text]


class ShadowReport(Shadow):
    """A shadow run with its findings."""

    candidate: Text
    would_be_denied: list[ShadowFinding]
    would_be_allowed: list[ShadowFinding]
    other_denied: int
    """Number of accesses that are not listed."""
    other_allowed: int
    changes: list[ShadowChange]
    problem: Text
    """The reason why the manifests cannot be compared now; empty otherwise."""


@shadows.get("/shadows", **operation(Scope.SUBJECTS_READ))
def list_shadows(request: Request, visitor: Reader) -> ShadowList:
    """List shadow runs, active ones first."""
    found = shadow_runs.list_shadows(sandbox_of(request), visitor.caller)
    return ShadowList(
        items=[ShadowEntry.of(one.run, would_be_denied=one.denied, would_be_allowed=one.allowed) for one in found]
    )


@shadows.post("/shadows", **operation(Scope.REQUESTS_DECIDE, 404, 409, body=True))
def start_shadow(request: Request, order: NewShadow, visitor: Starter) -> Shadow:
    """Start a shadow run on all nodes. The current manifest still decides."""
    text = order.manifest if isinstance(order.manifest, str) else json.dumps(order.manifest, indent=2)
    with serving(visitor.caller):
        run = shadow_runs.start_shadow(
            sandbox_of(request), subject_named(order.subject), text, visitor.caller, dry_run=order.dry_run
        )
    return Shadow.model_validate(run)


@shadows.get("/shadows/{shadow_id}", **operation(Scope.SUBJECTS_READ, 404))
def show_shadow(request: Request, shadow_id: Id, visitor: Reader) -> ShadowReport:
    """Show the observed accesses that the candidate would newly deny or allow, and the differences of the manifests."""
    found = shadow_runs.show_shadow(sandbox_of(request), shadow_id, visitor.caller)
    return ShadowReport.of(
        found.run,
        would_be_denied=found.denied,
        would_be_allowed=found.allowed,
        changes=found.changes,
        problem=found.problem,
    )


@shadows.post("/shadows/{shadow_id}/end", **operation(Scope.REQUESTS_DECIDE, 404))
def end_shadow(request: Request, shadow_id: Id, visitor: Starter) -> Shadow:
    """Stop a shadow run; its findings are kept. An ended run stays unchanged."""
    with serving(visitor.caller):
        run = shadow_runs.end_shadow(sandbox_of(request), shadow_id, visitor.caller)
    return Shadow.model_validate(run)
