"""Access requests with the facts for a decision, and approvals and denials: list and show them, decide, and revoke."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Depends, Query
from pydantic import AwareDatetime, Field

from democrai_sandbox.access import values
from democrai_sandbox.access.values import DecisionFilter, RequestFilter, RequestState
from democrai_sandbox.access.verdicts import MOST_AT_ONCE, RiskLevel
from democrai_sandbox.console.auth import ServedRequest, Visitor, holder, require_recent_password
from democrai_sandbox.console.problems import told as told_of
from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, SandboxError
from democrai_sandbox.host.decisions import (
    SubmittedDecision,
    UnrequestedAccess,
    approved_accesses,
    decide,
    decision_targets,
)
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import Operation, ResourceType, SubjectKind
from democrai_sandbox.runtime.access_environment import serving

from . import openapi
from .openapi import operation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.access.administration import Administration, Outcome
    from democrai_sandbox.access.values import AccessTuple
    from democrai_sandbox.access.verdicts import RiskAssessment

requests = openapi.router("requests")
RequestReader = Annotated[ServedRequest, Depends(holder(Scope.REQUESTS_READ))]


class QueueQuery(openapi.Paging):
    """Filters of requests."""

    kind: SubjectKind | None = None
    subject: openapi.SubjectText = ""
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
            subject=openapi.subject_of(self.subject),
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


class RiskReason(openapi.ApiAnswer):
    """One reason for a risk."""

    code: str
    level: RiskLevel
    text: openapi.Text


class RequestGroupItem(openapi.ApiAnswer):
    """All pending requests for the same access, of all users."""

    access: openapi.AccessItem
    newest_id: str
    requests: int
    count: int
    users: list[openapi.Text]
    user_count: int
    session_count: int
    first_seen: datetime
    last_seen: datetime
    risk: RiskLevel
    risk_reasons: list[RiskReason]
    chain: list[openapi.Text]


class TargetChoice(openapi.ApiAnswer):
    """A possible target of a decision: the requested one or a broader one."""

    target: openapi.Text
    label: openapi.Text
    words: openapi.Text
    warnings: list[openapi.Text]
    is_exact: bool
    version: int | None
    """Version of the decisions about this target and the requested one: see `expected_version`. Null for a user who
    may not decide."""
    risk: RiskLevel | None
    """Risk of approving this target. Null for a user who may not decide."""
    risk_reasons: list[RiskReason]
    """Highest first."""


class RequestDetail(openapi.ApiAnswer):
    """A request with the facts for a decision."""

    request: openapi.AccessRequest
    risk: RiskLevel | None = Field(description="Null for a reader who may not decide.")
    risk_reasons: list[RiskReason] = Field(description="The highest first.")
    version: int | None = Field(
        description="Version of the decisions about the requested target: see `expected_version`. Null for a user who "
        "may not decide."
    )
    choices: list[TargetChoice]
    similar: list[openapi.DecisionItem]
    alike: list[openapi.AccessRequest]
    history: list[openapi.AuditItem]
    resume: openapi.ResumeStatus | None


class NewNote(openapi.ApiInput):
    """A note on a request."""

    text: str = Field(min_length=1, max_length=2000)


@requests.get("/requests", **operation(Scope.REQUESTS_READ, query=True))
def list_requests(
    served: RequestReader, query: Annotated[RequestQuery, Query()]
) -> openapi.ListPage[openapi.AccessRequest]:
    """List requests, most recently seen first; by default pending ones. Users who may not decide see their own."""
    with served.administration() as administration:
        if served.visitor.may_decide:
            found = administration.pending_requests(query.wanted, query.page)
        else:
            found = administration.own_requests(query.page, states=query.own_states)
    return openapi.ListPage[openapi.AccessRequest].model_validate(found)


@requests.get("/requests/queue", **operation(Scope.REQUESTS_READ, query=True))
def list_queue(served: RequestReader, query: Annotated[QueueQuery, Query()]) -> openapi.ListPage[RequestGroupItem]:
    """List pending requests, one row per access, highest risk first."""
    with served.administration() as administration:
        return openapi.ListPage[RequestGroupItem].model_validate(administration.queue(query.wanted, query.page))


@requests.get("/requests/{request_id}", **operation(Scope.REQUESTS_READ, 404))
def show_request(served: RequestReader, request_id: openapi.Id) -> RequestDetail:
    """Show a request, its choices, similar decisions, its history, and the state of its resume action.

    The user who made it can see it too, without data of other users.
    """
    with served.administration() as administration:
        found = administration.request(request_id)
        risk = administration.risk(found.access) if served.visitor.may_decide else None
        offered = _choices(administration, found, served.visitor)
        return RequestDetail.model_validate(
            {
                "request": found,
                "risk": risk and risk.level,
                "risk_reasons": risk.reasons if risk else (),
                "version": offered[0].version,
                "choices": offered,
                "similar": administration.similar(found) if served.visitor.may_decide else (),
                "alike": administration.alike(found) if served.visitor.may_decide else (),
                "history": administration.history_of(found.id),
                "resume": administration.resume_of(found.id),
            }
        )


@requests.post("/requests/{request_id}/notes", status_code=201, **operation(Scope.REQUESTS_DECIDE, 404, 409, body=True))
def add_note(
    served: Annotated[ServedRequest, Depends(holder(Scope.REQUESTS_DECIDE))],
    request_id: openapi.Id,
    note: NewNote,
    repeated: openapi.Repeating,
) -> openapi.AuditItem:
    """Add a note to a request, such as a question to its user. It decides nothing."""

    def act() -> openapi.AuditItem:
        with served.administration() as administration:
            return openapi.AuditItem.model_validate(administration.note(request_id, note.text))

    return repeated.run(served.visitor, note, openapi.AuditItem, act, for_all=True)


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


decisions = openapi.router("decisions")
Reader = Annotated[ServedRequest, Depends(holder(Scope.APPROVALS_READ))]


class DecisionQuery(openapi.Paging):
    """Filters of decisions."""

    state: Literal["live", "ended", "any"] = "live"
    scope: values.DecisionScope | None = None
    subject: openapi.SubjectText = ""
    resource_type: ResourceType | None = None
    operation: Operation | None = None
    session: str = Field(default="", max_length=500)
    text: str = Field(default="", max_length=1000, description="Part of the target, ignoring case.")

    @property
    def wanted(self) -> DecisionFilter:
        """The filter for the access service."""
        return DecisionFilter(
            scope=self.scope,
            subject=openapi.subject_of(self.subject),
            resource_type=self.resource_type,
            operation=self.operation,
            session_key=self.session,
            text=self.text,
            live={"live": True, "ended": False}.get(self.state),
        )


class DecisionDetail(openapi.DecisionItem):
    """An approval or a denial, with its version."""

    version: int
    """Version of all decisions about the same access: see `expected_version`."""


@decisions.get("/approvals", **operation(Scope.APPROVALS_READ, query=True))
def list_approvals(served: Reader, query: Annotated[DecisionQuery, Query()]) -> openapi.ListPage[openapi.DecisionItem]:
    """List approvals, newest first, with the administrator and the time of the last use."""
    with served.administration() as administration:
        return openapi.ListPage[openapi.DecisionItem].model_validate(administration.approvals(query.wanted, query.page))


@decisions.get("/denials", **operation(Scope.APPROVALS_READ, query=True))
def list_denials(served: Reader, query: Annotated[DecisionQuery, Query()]) -> openapi.ListPage[openapi.DecisionItem]:
    """List denials, newest first."""
    with served.administration() as administration:
        return openapi.ListPage[openapi.DecisionItem].model_validate(administration.denials(query.wanted, query.page))


@decisions.get("/decisions/{decision_id}", **operation(Scope.APPROVALS_READ, 404))
def show_decision(served: Reader, decision_id: openapi.Id) -> DecisionDetail:
    """Show an approval or a denial, in force or not."""
    with served.administration() as administration:
        found = administration.decision(decision_id)
        (version,) = administration.versions(found.access)
    return DecisionDetail.of(found, version=version)


decision_calls = openapi.router("decisions")
Decider = Annotated[ServedRequest, Depends(holder(Scope.REQUESTS_DECIDE))]
_DECIDES = operation(Scope.REQUESTS_DECIDE, 404, 409, body=True)
_PREVIEW = MappingProxyType(
    {
        "session": "would be approved until its session ends",
        "permanent": "would be approved permanently",
        "deny": "would be denied",
    }
)
Target = Annotated[str, Field(min_length=1, max_length=8192)]


class RequestVerdict(openapi.ApiInput):
    """A decision about a request."""

    target: Target | None = Field(
        default=None, description="A broader target that covers the requested one; see `choices`."
    )
    reason: openapi.Reason = ""
    expected_version: openapi.Version | None = Field(default=None, description=openapi.ABOUT_VERSION)


class PermanentVerdict(RequestVerdict):
    """A permanent or limited approval of a request."""

    lifetime_seconds: openapi.Lifetime | None = None


class Bulk(openapi.ApiInput):
    """One decision about many requests."""

    request_ids: list[openapi.Id] = Field(min_length=1, max_length=MOST_AT_ONCE)
    act: Literal["session", "permanent", "deny"]
    reason: openapi.Reason = ""
    expected_versions: dict[openapi.Id, openapi.Version] = Field(
        default={}, description=f"By request, as a `dry_run` tells them. {openapi.ABOUT_VERSION}"
    )
    dry_run: bool = Field(default=False, description="Only tell what would become of each.")


class BulkItem(openapi.ApiAnswer):
    """Result for one request."""

    id: openapi.Text
    done: bool
    told: openapi.Text
    """The result in words."""
    code: str = Field(default="")
    """Code of the error, if any."""
    decision: openapi.DecisionItem | None = None
    version: int | None = None
    """With `dry_run`, the version of the state; null for a request that would not be decided."""


class BulkResult(openapi.ApiAnswer):
    """Results in the given order."""

    dry_run: bool
    items: list[BulkItem]


class Unasked(openapi.ApiInput):
    """A decision without a request."""

    subject: openapi.SubjectText
    resource_type: str = Field(max_length=100)
    operation: str = Field(max_length=100)
    target: Target
    effect: Literal["approval", "denial"]
    reason: openapi.Reason = ""
    lifetime_seconds: openapi.Lifetime | None = None
    expected_version: openapi.Version | None = Field(default=None, description=openapi.ABOUT_VERSION)


class Revocation(openapi.ApiInput):
    """The reason of a revocation."""

    reason: openapi.Reason = ""


# For HTTP requests without a body.
_NO_VERDICT, _NO_PERMANENT_VERDICT, _NO_REVOCATION = RequestVerdict(), PermanentVerdict(), Revocation()


@decision_calls.post("/requests/decide", **_DECIDES)
def decide_requests(served: Decider, bulk: Bulk, repeated: openapi.Repeating) -> BulkResult:
    """Decide many requests separately: a failed one does not stop the others. `dry_run` only previews."""
    with served.administration() as administration:
        if bulk.dry_run:
            return BulkResult(
                dry_run=True, items=[_previewed(administration, bulk, found) for found in bulk.request_ids]
            )
    if bulk.act == "permanent":
        with serving(served.caller):
            approved = _approved(
                administration, served.visitor, *(SubmittedDecision(bulk.act, one) for one in bulk.request_ids)
            )
        require_recent_password(served.request, served.visitor, approved)

    def act() -> BulkResult:
        with serving(served.caller):
            decided = administration.decide_many(
                bulk.request_ids, bulk.act, reason=bulk.reason, expected=bulk.expected_versions
            )
        return BulkResult(dry_run=False, items=[_item(found, outcome) for found, outcome in decided])

    return repeated.run(served.visitor, bulk, BulkResult, act)


@decision_calls.post("/requests/{request_id}/approve-session", **_DECIDES)
def approve_for_session(
    served: Decider, request_id: openapi.Id, repeated: openapi.Repeating, verdict: RequestVerdict = _NO_VERDICT
) -> openapi.DecisionResult:
    """Approve a request until its session ends; without a session nothing is stored, and `skipped` has the reason."""
    return _decided(served, repeated, verdict, _submitted("session", request_id, verdict))


@decision_calls.post("/requests/{request_id}/approve", **_DECIDES)
def approve(
    served: Decider,
    request_id: openapi.Id,
    repeated: openapi.Repeating,
    verdict: PermanentVerdict = _NO_PERMANENT_VERDICT,
) -> openapi.DecisionResult:
    """Approve a request permanently, or for a time."""
    submitted = _submitted("permanent", request_id, verdict, _span(verdict.lifetime_seconds))
    with served.administration() as administration:
        approved = _approved(administration, served.visitor, submitted)
    require_recent_password(served.request, served.visitor, approved)
    return _decided(served, repeated, verdict, submitted)


@decision_calls.post("/requests/{request_id}/deny", **_DECIDES)
def deny(
    served: Decider, request_id: openapi.Id, repeated: openapi.Repeating, verdict: RequestVerdict = _NO_VERDICT
) -> openapi.DecisionResult:
    """Deny a request until the denial is revoked or the access approved."""
    return _decided(served, repeated, verdict, _submitted("deny", request_id, verdict))


@decision_calls.post("/decisions", status_code=201, **operation(Scope.REQUESTS_DECIDE, 409, body=True))
def decide_unasked(served: Decider, unasked: Unasked, repeated: openapi.Repeating) -> openapi.DecisionResult:
    """Approve or deny an access permanently, without a request."""
    submitted = SubmittedDecision(
        "permanent" if unasked.effect == "approval" else "deny",
        UnrequestedAccess(
            openapi.subject_named(unasked.subject), unasked.resource_type, unasked.operation, unasked.target
        ),
        reason=unasked.reason,
        lifetime=_span(unasked.lifetime_seconds),
        expected=unasked.expected_version,
    )
    if unasked.effect == "approval":
        approved = approved_accesses(served.sandbox.access.administration, submitted)
        require_recent_password(served.request, served.visitor, approved)
    return _decided(served, repeated, unasked, submitted)


@decision_calls.post("/decisions/{decision_id}/revoke", **operation(Scope.APPROVALS_REVOKE, 404, 409, body=True))
def revoke(
    served: Annotated[ServedRequest, Depends(holder(Scope.APPROVALS_REVOKE))],
    decision_id: openapi.Id,
    repeated: openapi.Repeating,
    revocation: Revocation = _NO_REVOCATION,
) -> openapi.DecisionItem:
    """Revoke an approval or a denial: the access is undecided again, on every node within moments."""

    def act() -> openapi.DecisionItem:
        revoked = SubmittedDecision("revoke", decision_id, reason=revocation.reason)
        outcome = decide(served.sandbox.access.administration, served.caller, revoked)
        return openapi.DecisionItem.model_validate(outcome.decision)

    return repeated.run(served.visitor, revocation, openapi.DecisionItem, act)


def _submitted(
    act: str, request_id: str, verdict: RequestVerdict, lifetime: timedelta | None = None
) -> SubmittedDecision:
    return SubmittedDecision(act, request_id, verdict.target, verdict.reason, lifetime, verdict.expected_version)


def _decided(
    served: ServedRequest, repeated: openapi.Repeatable, order: openapi.ApiInput, submitted: SubmittedDecision
) -> openapi.DecisionResult:
    """Return the result of a decision; a repeated idempotency key returns the first result."""

    def act() -> openapi.DecisionResult:
        return openapi.DecisionResult.model_validate(
            decide(served.sandbox.access.administration, served.caller, submitted)
        )

    return repeated.run(served.visitor, order, openapi.DecisionResult, act)


def _approved(administration: Administration, visitor: Visitor, *submitted: SubmittedDecision) -> list[AccessTuple]:
    """Return the accesses that a user is about to approve; none for a token, which has no password."""
    found = []
    for one in submitted if visitor.identity.scopes is None and visitor.may_decide else ():
        with suppress(SandboxError):  # deciding gives the better error
            found += approved_accesses(administration, one)
    return found


def _span(seconds: int | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _item(request_id: str, outcome: Outcome | SandboxError) -> BulkItem:
    if isinstance(outcome, SandboxError):
        said = told_of(outcome)
        return BulkItem(id=request_id, done=False, told=said.detail, code=said.code)
    if outcome.decision is None:
        return BulkItem(id=request_id, done=False, told=outcome.skipped, code="skipped")
    decision = openapi.DecisionItem.model_validate(outcome.decision)
    return BulkItem(id=request_id, done=True, told="decided", decision=decision)


def _previewed(administration: Administration, bulk: Bulk, request_id: str) -> BulkItem:
    """Return the expected result for a request."""
    try:
        found = administration.request(request_id)
    except SandboxError as error:
        return _item(request_id, error)
    what = f"{found.access.subject} {found.access.operation} {found.access.target}"
    if found.state is not RequestState.PENDING:
        by = f" by {found.changed_by}" if found.changed_by else ""
        said = f"{what} is already {found.state.value}{by}"
        return BulkItem(id=request_id, done=False, told=said, code=DecisionConflict.code)
    if bulk.act == "session" and (not found.origin.session_key or found.session_ended):
        return BulkItem(id=request_id, done=False, told=f"{what} has no active session", code="skipped")
    (version,) = administration.versions(found.access)
    return BulkItem(id=request_id, done=True, told=f"{what} {_PREVIEW[bulk.act]}", version=version)
