"""Access requests: lists, groups, and single requests with the facts for a decision."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Query, Request
from pydantic import AwareDatetime, Field

from democrai_sandbox.access.risk import RiskLevel
from democrai_sandbox.access.values import RequestFilter, RequestState
from democrai_sandbox.console.auth import Visitor, holder, sandbox_of
from democrai_sandbox.errors import ExternalAccessAdminRequired
from democrai_sandbox.host.decisions import decision_targets
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import Operation, ResourceType, SubjectKind
from democrai_sandbox.runtime.access_environment import serving

from . import schemas
from .idempotency import Repeating
from .openapi import operation, router
from .schemas import ApiAnswer, ApiInput, Id, Paging, SubjectText, Text, subject_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access import values
    from democrai_sandbox.access.administration import Administration
    from democrai_sandbox.access.risk import RiskAssessment

requests = router("requests")
Reader = Annotated[Visitor, Depends(holder(Scope.REQUESTS_READ))]


class QueueQuery(Paging):
    """Filters of requests."""

    kind: SubjectKind | None = None
    subject: SubjectText = ""
    resource_type: ResourceType | None = None
    operation: Operation | None = None
    user: str = Field(default="", max_length=500)
    organization: str = Field(default="", max_length=500)
    session: str = Field(default="", max_length=500)
    text: str = Field(default="", max_length=1000, description="Part of the target, ignoring case.")
    newer_than: AwareDatetime | None = Field(default=None, description="First seen at this time or later.")
    older_than: AwareDatetime | None = Field(default=None, description="First seen before this time.")

    @property
    def wanted(self) -> RequestFilter:
        """The filter for the access service."""
        return RequestFilter(
            subject=subject_of(self.subject),
            subject_kind=self.kind,
            resource_type=self.resource_type,
            operation=self.operation,
            user_id=self.user,
            organization_id=self.organization,
            session_key=self.session,
            text=self.text,
            newer_than=self.newer_than,
            older_than=self.older_than,
        )


class RequestQuery(QueueQuery):
    """Filters of requests, including states."""

    state: list[RequestState] = Field(default=[RequestState.PENDING], description="May be repeated.")

    @property
    def wanted(self) -> RequestFilter:
        """The filter for the access service."""
        return replace(super().wanted, states=tuple(self.state))

    @property
    def own_states(self) -> tuple[RequestState, ...]:
        """The states; users who may not decide can use no other filter."""
        if others := sorted(self.model_fields_set - {"state", "limit", "after"}):
            raise ExternalAccessAdminRequired(f"you can filter your own requests by state only, not by {others[0]}")
        return tuple(self.state)


class RiskReason(ApiAnswer):
    """One reason for a risk."""

    code: str
    level: RiskLevel
    text: Text


class RequestGroupItem(ApiAnswer):
    """All pending requests for the same access, of all users."""

    access: schemas.AccessItem
    newest_id: str
    requests: int
    count: int
    users: list[Text]
    user_count: int
    session_count: int
    first_seen: datetime
    last_seen: datetime
    risk: RiskLevel
    risk_reasons: list[RiskReason]
    chain: list[Text]


class TargetChoice(ApiAnswer):
    """A possible target of a decision: the requested one or a broader one."""

    target: Text
    label: Text
    words: Text
    warnings: list[Text]
    is_exact: bool
    version: int | None
    """Version of the decisions about this target and the requested one: see `expected_version`. Null for a user who
    may not decide."""
    risk: RiskLevel | None
    """Risk of approving this target. Null for a user who may not decide."""
    risk_reasons: list[RiskReason]
    """Highest first."""


class RequestDetail(ApiAnswer):
    """A request with the facts for a decision."""

    request: schemas.AccessRequest
    risk: RiskLevel | None = Field(description="Null for a reader who may not decide.")
    risk_reasons: list[RiskReason] = Field(description="The highest first.")
    version: int | None = Field(
        description="Version of the decisions about the requested target: see `expected_version`. Null for a user who "
        "may not decide."
    )
    choices: list[TargetChoice]
    similar: list[schemas.DecisionItem]
    alike: list[schemas.AccessRequest]
    history: list[schemas.AuditItem]
    resume: schemas.ResumeStatus | None


class NewNote(ApiInput):
    """A note on a request."""

    text: str = Field(min_length=1, max_length=2000)


@requests.get("/requests", **operation(Scope.REQUESTS_READ, query=True))
def list_requests(
    request: Request, query: Annotated[RequestQuery, Query()], visitor: Reader
) -> schemas.ListPage[schemas.AccessRequest]:
    """List requests, most recently seen first; by default pending ones. Users who may not decide see their own."""
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        if visitor.may_decide:
            found = administration.pending_requests(query.wanted, query.page)
        else:
            found = administration.own_requests(query.page, states=query.own_states)
    return schemas.ListPage[schemas.AccessRequest].model_validate(found)


@requests.get("/requests/queue", **operation(Scope.REQUESTS_READ, query=True))
def list_queue(
    request: Request, query: Annotated[QueueQuery, Query()], visitor: Reader
) -> schemas.ListPage[RequestGroupItem]:
    """List pending requests, one row per access, highest risk first."""
    with serving(visitor.caller):
        found = sandbox_of(request).access.administration.queue(query.wanted, query.page)
    return schemas.ListPage[RequestGroupItem].model_validate(found)


@requests.get("/requests/{request_id}", **operation(Scope.REQUESTS_READ, 404))
def show_request(request: Request, request_id: Id, visitor: Reader) -> RequestDetail:
    """Show a request, its choices, similar decisions, its history, and the state of its resume action.

    The user who made it can see it too, without data of other users.
    """
    administration = sandbox_of(request).access.administration
    with serving(visitor.caller):
        found = administration.request(request_id)
        risk = administration.risk(found.access) if visitor.may_decide else None
        offered = _choices(administration, found, visitor)
        return RequestDetail.model_validate(
            {
                "request": found,
                "risk": risk and risk.level,
                "risk_reasons": risk.reasons if risk else (),
                "version": offered[0].version,
                "choices": offered,
                "similar": administration.similar(found) if visitor.may_decide else (),
                "alike": administration.alike(found) if visitor.may_decide else (),
                "history": administration.history_of(found.id),
                "resume": administration.resume_of(found.id),
            }
        )


@requests.post("/requests/{request_id}/notes", status_code=201, **operation(Scope.REQUESTS_DECIDE, 404, 409, body=True))
def add_note(
    request: Request,
    request_id: Id,
    note: NewNote,
    visitor: Annotated[Visitor, Depends(holder(Scope.REQUESTS_DECIDE))],
    repeated: Repeating,
) -> schemas.AuditItem:
    """Add a note to a request, such as a question to its user. It decides nothing."""

    def act() -> schemas.AuditItem:
        with serving(visitor.caller):
            record = sandbox_of(request).access.administration.note(request_id, note.text)
        return schemas.AuditItem.model_validate(record)

    return repeated.run(visitor, note, schemas.AuditItem, act, for_all=True)


def _choices(administration: Administration, found: values.StoredRequest, visitor: Visitor) -> list[TargetChoice]:
    """Return the choices of a request; for users who may decide, with the version and the risk of each."""
    offered = decision_targets(found.access, look=visitor.may_decide)
    known: Iterable[tuple[int | None, RiskAssessment | None]] = ((None, None),) * len(offered)
    if visitor.may_decide:
        targets = [one.target for one in offered]
        versions, risks = administration.versions(found.access, targets), administration.risks(found.access, targets)
        known = zip(versions, risks, strict=True)
    return [
        TargetChoice.of(
            one, version=version, risk=risk.level if risk else None, risk_reasons=risk.reasons if risk else ()
        )
        for one, (version, risk) in zip(offered, known, strict=True)
    ]
