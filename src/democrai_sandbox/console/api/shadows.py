"""Shadow runs: a candidate manifest beside the present one of a subject, and what would change."""

from __future__ import annotations

import json
from datetime import datetime  # noqa: TC003 - FastAPI reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request
from pydantic import Field

from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.host import shadowing
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.manifests import ChangeEffect  # noqa: TC001 - the same
from democrai_sandbox.runtime.surroundings import serving

from .documenting import router, told
from .schemas import Answer, Id, Named, Order, SubjectText, Text, subject_named

if TYPE_CHECKING:
    from democrai_sandbox.host.shadowing import ShadowDetail, ShadowOverview
    from democrai_sandbox.runtime.store import ShadowRun

shadows = router("shadows")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]
Starter = Annotated[Visitor, Depends(holder(Scope.REQUESTS_DECIDE))]


class NewShadow(Order):
    """Which subject is to run beside which manifest."""

    subject: SubjectText
    manifest: str | dict[str, Any] = Field(description="The candidate: an object, or its text as in a file.")
    dry_run: bool = Field(default=False, description="Only check it; the run in the answer has no id then.")


class Shadow(Answer):
    """A run."""

    id: str
    subject: Named
    is_running: bool
    started_at: datetime
    started_by: Text
    ended_at: datetime | None
    ended_by: Text


class ShadowEntry(Shadow):
    """A run in the list of all."""

    would_be_denied: int
    """How many things that happen now would not be allowed."""
    would_be_allowed: int


class ShadowList(Answer):
    """All runs that are kept."""

    items: list[ShadowEntry]


class ShadowFinding(Answer):
    """Something that the subject did or tried, about which the candidate says something else."""

    resource_type: Text
    """That of a rule, or `import` for a sensitive import."""
    operation: Text
    target: Text
    count: int
    first_seen: datetime
    last_seen: datetime
    user_id: Text
    """For whom, the last time."""
    chain: list[Text]


class ShadowChange(Answer):
    """A difference between the two manifests as they are written."""

    effect: ChangeEffect
    pointer: Text
    before: list[Text]
    after: list[Text]


class ShadowReport(Shadow):
    """A run with what it found."""

    candidate: Text
    would_be_denied: list[ShadowFinding]
    would_be_allowed: list[ShadowFinding]
    other_denied: int
    """Accesses beyond the things that are listed."""
    other_allowed: int
    changes: list[ShadowChange]
    problem: Text
    """Why the two manifests cannot be compared now; empty when they can."""


@shadows.get("/shadows", **told(Scope.SUBJECTS_READ))
def list_shadows(request: Request, visitor: Reader) -> ShadowList:
    """List shadow runs, those that go on first."""
    found = shadowing.list_shadows(sandbox_of(request), visitor.caller)
    return ShadowList(items=[_entry(one) for one in found])


@shadows.post("/shadows", **told(Scope.REQUESTS_DECIDE, 404, 409, body=True))
def start_shadow(request: Request, order: NewShadow, visitor: Starter) -> Shadow:
    """Have a subject run beside a candidate manifest, on all nodes. What it may do stays as it is."""
    text = order.manifest if isinstance(order.manifest, str) else json.dumps(order.manifest, indent=2)
    with serving(visitor.caller):
        run = shadowing.start_shadow(
            sandbox_of(request), subject_named(order.subject), text, visitor.caller, dry_run=order.dry_run
        )
    return Shadow.model_validate(run)


@shadows.get("/shadows/{shadow_id}", **told(Scope.SUBJECTS_READ, 404))
def show_shadow(request: Request, shadow_id: Id, visitor: Reader) -> ShadowReport:
    """Show what the candidate would newly deny or allow, as far as it was seen, and what it changes on paper."""
    return _report(shadowing.show_shadow(sandbox_of(request), shadow_id, visitor.caller))


@shadows.post("/shadows/{shadow_id}/end", **told(Scope.REQUESTS_DECIDE, 404))
def end_shadow(request: Request, shadow_id: Id, visitor: Starter) -> Shadow:
    """End a run; what was found is kept. One that has ended stays as it is."""
    with serving(visitor.caller):
        run = shadowing.end_shadow(sandbox_of(request), shadow_id, visitor.caller)
    return Shadow.model_validate(run)


def _facts(run: ShadowRun) -> dict[str, Any]:
    return {name: getattr(run, name) for name in Shadow.model_fields}


def _entry(one: ShadowOverview) -> ShadowEntry:
    counts = {"would_be_denied": one.denied, "would_be_allowed": one.allowed}
    return ShadowEntry.model_validate({**_facts(one.run), **counts})


def _report(found: ShadowDetail) -> ShadowReport:
    run = found.run
    return ShadowReport.model_validate(
        {
            **_facts(run),
            "candidate": run.candidate,
            "would_be_denied": found.denied,
            "would_be_allowed": found.allowed,
            "other_denied": run.other_denied,
            "other_allowed": run.other_allowed,
            "changes": found.changes,
            "problem": found.problem,
        }
    )
