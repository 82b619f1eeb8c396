"""Subjects: declarations, decisions and observed accesses."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - FastAPI reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Path, Request

from democrai_sandbox.console.admitting import require_administrator
from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.host.observing import Reason  # noqa: TC001 - FastAPI reads the annotations
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.host.surveying import portrait, survey
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.surroundings import serving

from . import schemas  # noqa: TC001 - the same
from .documenting import router, told
from .schemas import Answer, Named, Text

if TYPE_CHECKING:
    from democrai_sandbox.host.matching import Seen
    from democrai_sandbox.host.surveying import Portrait

subjects = router("subjects")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]


class SubjectCounts(Answer):
    """Counts of one subject."""

    pending: int
    requests: int
    approvals: int
    denials: int


class SubjectEntry(Answer):
    """A subject in a list."""

    subject: Named
    source: Text
    declared: int
    counts: SubjectCounts
    is_broken: bool


class SubjectList(Answer):
    """All known subjects."""

    items: list[SubjectEntry]


class DeclaredRule(Answer):
    """A rule of a manifest, and the number of observed accesses that it covers."""

    rule: schemas.Rule
    section: Text
    line: int
    is_observable: bool
    times_seen: int


class DecidedRule(Answer):
    """A decision in force, and the number of observed accesses that it covers."""

    decision: schemas.Decision
    times_seen: int
    is_unused: bool


class Observation(Answer):
    """An access since this process started, its reason, and the rule or decision that covers it now."""

    resource_type: Text
    operation: Text
    target: Text
    result: Text
    reason: Reason
    """The rule or decision at that time; empty without one."""
    count: int
    first: datetime
    last: datetime
    declared: schemas.Rule | None
    decision_id: str
    """Id of the decision in force now, which can be newer than the result."""


class SubjectDetail(Answer):
    """A subject in full."""

    subject: Named
    manifest_file: Text
    inherits: bool
    problems: list[Text]
    declared: list[DeclaredRule]
    approvals: list[DecidedRule]
    denials: list[DecidedRule]
    observed: list[Observation]
    requests: list[schemas.AccessRequest]


@subjects.get("/subjects", **told(Scope.SUBJECTS_READ))
def list_subjects(request: Request, visitor: Reader) -> SubjectList:
    """List all known subjects: extensions, MCP servers, tools, and subjects with requests or decisions."""
    require_administrator(visitor)
    return SubjectList.model_validate({"items": survey(sandbox_of(request))})


@subjects.get("/subjects/{kind}/{name:path}", **told(Scope.SUBJECTS_READ, 404))
def show_subject(
    request: Request, kind: SubjectKind, name: Annotated[str, Path(min_length=1, max_length=300)], visitor: Reader
) -> SubjectDetail:
    """Show declarations, decisions and observed accesses of a subject side by side."""
    with serving(visitor.caller):
        found = portrait(sandbox_of(request), Subject(kind, name))
    return SubjectDetail.model_validate(_shown(found))


def _shown(found: Portrait) -> dict[str, Any]:
    return {
        "subject": found.subject,
        "manifest_file": found.manifest_file,
        "inherits": found.inherits,
        "problems": found.problems,
        "declared": found.declared,
        "approvals": found.approvals,
        "denials": found.denials,
        "observed": [_observation(seen) for seen in found.observed],
        "requests": found.requests,
    }


def _observation(seen: Seen) -> dict[str, Any]:
    names = ("resource_type", "operation", "target", "result", "reason", "count", "first", "last")
    facts = {name: getattr(seen.observed, name) for name in names}
    return {**facts, "declared": seen.declared, "decision_id": "" if seen.decided is None else seen.decided.id}
