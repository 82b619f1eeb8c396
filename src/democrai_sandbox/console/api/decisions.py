"""Approvals and denials, in force and ended."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Depends, Query, Request
from pydantic import Field

from democrai_sandbox.access import values  # noqa: TC001 - FastAPI reads the annotations
from democrai_sandbox.access.values import DecisionFilter
from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import Operation, ResourceType  # noqa: TC001 - the same
from democrai_sandbox.runtime.surroundings import serving

from . import schemas
from .documenting import router, told
from .schemas import Id, Paging, SubjectText, subject_of

decisions = router("decisions")
Reader = Annotated[Visitor, Depends(holder(Scope.APPROVALS_READ))]


class DecisionQuery(Paging):
    """Filters of decisions."""

    state: Literal["live", "ended", "any"] = "live"
    scope: values.Scope | None = None
    subject: SubjectText = ""
    resource_type: ResourceType | None = None
    operation: Operation | None = None
    session: str = Field(default="", max_length=500)
    text: str = Field(default="", max_length=1000, description="Part of the target, ignoring case.")

    @property
    def wanted(self) -> DecisionFilter:
        """The filter for the access service."""
        return DecisionFilter(
            scope=self.scope,
            subject=subject_of(self.subject),
            resource_type=self.resource_type,
            operation=self.operation,
            session_key=self.session,
            text=self.text,
            live={"live": True, "ended": False}.get(self.state),
        )


class DecisionDetail(schemas.Decision):
    """An approval or a denial, with its version."""

    version: int
    """Version of all decisions about the same access: see `expected_version`."""


@decisions.get("/approvals", **told(Scope.APPROVALS_READ, query=True))
def list_approvals(
    request: Request, query: Annotated[DecisionQuery, Query()], visitor: Reader
) -> schemas.Page[schemas.Decision]:
    """List approvals, newest first, with the administrator and the time of the last use."""
    with serving(visitor.caller):
        found = sandbox_of(request).access.administration.approvals(query.wanted, query.page)
    return schemas.Page[schemas.Decision].model_validate(found)


@decisions.get("/denials", **told(Scope.APPROVALS_READ, query=True))
def list_denials(
    request: Request, query: Annotated[DecisionQuery, Query()], visitor: Reader
) -> schemas.Page[schemas.Decision]:
    """List denials, newest first."""
    with serving(visitor.caller):
        found = sandbox_of(request).access.administration.denials(query.wanted, query.page)
    return schemas.Page[schemas.Decision].model_validate(found)


@decisions.get("/decisions/{decision_id}", **told(Scope.APPROVALS_READ, 404))
def show_decision(request: Request, decision_id: Id, visitor: Reader) -> DecisionDetail:
    """Show an approval or a denial, in force or not."""
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        found = administration.decision(decision_id)
        (version,) = administration.versions(found.access)
    shown = schemas.Decision.model_validate(found)
    return DecisionDetail(**dict(shown), version=version)
