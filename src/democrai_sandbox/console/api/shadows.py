"""Shadow runs: trials of candidate manifests, and their differences."""

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
    """Subject and candidate manifest of a new shadow run."""

    subject: SubjectText
    manifest: str | dict[str, Any] = Field(description="The candidate: an object, or its text as in a file.")
    dry_run: bool = Field(default=False, description="Only check the candidate; the run in the answer then has no id.")


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
    """A shadow run in a list."""

    would_be_denied: int
    """Number of current accesses that the candidate would deny."""
    would_be_allowed: int


class ShadowList(Answer):
    """All stored shadow runs."""

    items: list[ShadowEntry]


class ShadowFinding(Answer):
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


class ShadowChange(Answer):
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


@shadows.get("/shadows", **told(Scope.SUBJECTS_READ))
def list_shadows(request: Request, visitor: Reader) -> ShadowList:
    """List shadow runs, active ones first."""
    found = shadowing.list_shadows(sandbox_of(request), visitor.caller)
    return ShadowList(items=[_entry(one) for one in found])


@shadows.post("/shadows", **told(Scope.REQUESTS_DECIDE, 404, 409, body=True))
def start_shadow(request: Request, order: NewShadow, visitor: Starter) -> Shadow:
    """Start a shadow run on all nodes. The current manifest still decides."""
    text = order.manifest if isinstance(order.manifest, str) else json.dumps(order.manifest, indent=2)
    with serving(visitor.caller):
        run = shadowing.start_shadow(
            sandbox_of(request), subject_named(order.subject), text, visitor.caller, dry_run=order.dry_run
        )
    return Shadow.model_validate(run)


@shadows.get("/shadows/{shadow_id}", **told(Scope.SUBJECTS_READ, 404))
def show_shadow(request: Request, shadow_id: Id, visitor: Reader) -> ShadowReport:
    """Show the observed accesses that the candidate would newly deny or allow, and the differences of the manifests."""
    return _report(shadowing.show_shadow(sandbox_of(request), shadow_id, visitor.caller))


@shadows.post("/shadows/{shadow_id}/end", **told(Scope.REQUESTS_DECIDE, 404))
def end_shadow(request: Request, shadow_id: Id, visitor: Starter) -> Shadow:
    """Stop a shadow run; its findings are kept. An ended run stays unchanged."""
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
