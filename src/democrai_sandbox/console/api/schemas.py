"""JSON schemas of the API: requests, decisions and audit records."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from democrai_sandbox.access import values
from democrai_sandbox.console.plain_json import jsonable
from democrai_sandbox.policy import InvalidInputError, Operation, Problem, ResourceType, Subject

Text = Annotated[str, BeforeValidator(jsonable)]
"""Any text. Names, targets and reasons come from extensions and can contain lone surrogates."""
Named = Annotated[str, BeforeValidator(lambda value: jsonable(str(value)))]
"""A value with a text form, such as a subject: `kind:name`."""
Data = Annotated[Any, BeforeValidator(jsonable), Field(description='Any JSON; bytes are `{"base64": …}`.')]
Members = Annotated[dict[str, Any], BeforeValidator(jsonable)]
Item = TypeVar("Item")
Id = Annotated[str, Field(max_length=100)]
Reason = Annotated[str, Field(max_length=2000)]
Lifetime = Annotated[int, Field(gt=0, le=36525 * 86400, description="Seconds; without it, until it is revoked.")]
Version = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Version of the decisions about an access that a caller saw; 0 before the first one."""
ABOUT_VERSION = "The `version` of the state that you decided from; if it has changed, the answer is a 409."
SubjectText = Annotated[
    str, Field(max_length=400, description="`kind:name`, such as `module:reports`.", examples=["module:reports"])
]


class ApiAnswer(BaseModel):
    """Base of answers, filled from the attributes of a value."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)

    @classmethod
    def of(cls, value: object, **other: object) -> Self:
        """Return the answer with the attributes of a value, except for the members in ``other``."""
        return cls.model_validate({name: getattr(value, name) for name in cls.model_fields.keys() - other} | other)


class ApiInput(BaseModel):
    """Base of inputs; unknown names and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ListPage(ApiAnswer, Generic[Item]):
    """One page of a list; new rows do not shift it."""

    items: list[Item]
    next: str
    """Value of `after` for the next page; empty on the last page."""


class Paging(BaseModel):
    """Page of a list. Subclasses add filters; an unknown filter is refused, because it would be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(default=50, ge=1, le=1000)
    after: str = Field(default="", max_length=1000, description="The `next` of the previous page.")

    @property
    def page(self) -> values.PageRequest:
        """The page for the access service."""
        return values.PageRequest(self.limit, self.after)


class ProblemItem(ApiAnswer):
    """One problem of the input."""

    pointer: str
    message: str
    suggestion: str


class ProblemDocument(BaseModel):
    """An error in the format of RFC 9457. `type` and `code` are stable, the texts may change."""

    type: str
    """The path of the page about the code, `/errors/CODE` below the mount point of the application."""
    title: str
    status: int
    code: str
    detail: str
    problems: list[ProblemItem]
    request_id: str
    """The id of this HTTP request; the log has it too."""
    subject: str = ""
    operation: str = ""
    target: str = ""
    layer: str = ""
    hint: str = ""
    pending_request_id: str = ""
    """The pending request of a denial."""


class AccessItem(ApiAnswer):
    """An access: subject, operation and target."""

    subject: Named
    resource_type: ResourceType
    operation: Operation
    target: Text


class ManifestRule(ApiAnswer):
    """A rule as written in a manifest."""

    resource_type: ResourceType
    operation: Operation
    target: Text


class RequestOrigin(ApiAnswer):
    """User, organization, session and task of a request; empty if missing."""

    user_id: Text
    organization_id: Text
    session_key: Text
    task_id: Text


class AccessRequest(ApiAnswer):
    """A request for access."""

    id: str
    access: AccessItem
    raw_target: Text
    chain: list[Text]
    origin: RequestOrigin
    resume_action: Text
    has_context: bool
    state: values.RequestState
    first_seen: datetime
    last_seen: datetime
    count: int
    session_ended: bool
    decided_at: datetime | None
    decided_by: Text
    reason: Text
    decision_id: str
    """The decision that answered it; empty while pending."""
    ended_at: datetime | None
    """End of that decision: by a revocation, at its expiry, with its session, or by an opposite decision."""
    ended_by: Text


class DecisionItem(ApiAnswer):
    """An approval or a denial."""

    id: str
    access: AccessItem
    effect: values.DecisionEffect
    scope: values.DecisionScope
    session_key: Text
    created_at: datetime
    created_by: Text
    reason: Text
    request_id: Text
    expires_at: datetime | None
    ended_at: datetime | None
    ended_by: Text
    last_used: datetime | None


class DecisionResult(ApiAnswer):
    """Result of a decision."""

    decision: DecisionItem | None
    skipped: Text
    """The reason why nothing was stored, without an error; empty otherwise."""


class AuditItem(ApiAnswer):
    """One record of the audit log."""

    sequence: int
    at: datetime
    action: values.AuditAction
    actor: Text
    access: AccessItem | None
    request_id: Text
    before: Members
    after: Members
    previous_hash: str
    hash: str


class ResumeStatus(ApiAnswer):
    """State of the resume action."""

    id: str
    action: Text
    state: values.ResumptionState
    attempts: int
    created_at: datetime
    next_attempt: datetime
    last_error: Text
    finished_at: datetime | None


def subject_of(text: str) -> Subject | None:
    """Return the subject of a filter, or None for an empty text."""
    return subject_named(text) if text else None


def subject_named(text: str) -> Subject:
    """Return the subject of a text, or refuse it with its place."""
    try:
        return Subject.parse(text)
    except InvalidInputError as error:
        found = (Problem("/subject", problem.message, problem.suggestion) for problem in error.problems)
        raise InvalidInputError(found) from None
