"""The values of the API: what requests, decisions and audit records look like as JSON."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - pydantic reads the annotations
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from democrai_sandbox.access import values
from democrai_sandbox.access.values import (  # noqa: TC001 - the same
    AuditAction,
    Effect,
    RequestState,
    ResumeState,
    Scope,
)
from democrai_sandbox.console.plain import jsonable
from democrai_sandbox.policy import InvalidInputError, Operation, Problem, ResourceType, Subject

Text = Annotated[str, BeforeValidator(jsonable)]
"""Any text of ours: names, targets and reasons come from strangers, and may hold what UTF-8 cannot."""
Named = Annotated[str, BeforeValidator(lambda value: jsonable(str(value)))]
"""What has a text form, such as a subject: `kind:name`."""
Data = Annotated[Any, BeforeValidator(jsonable), Field(description='Any JSON; bytes are `{"base64": …}`.')]
Members = Annotated[dict[str, Any], BeforeValidator(jsonable)]
Item = TypeVar("Item")
Id = Annotated[str, Field(max_length=100)]
Reason = Annotated[str, Field(max_length=2000)]
Lifetime = Annotated[int, Field(gt=0, le=36525 * 86400, description="Seconds; without it, until it is revoked.")]
Version = Annotated[int, Field(ge=0, le=2**63 - 1)]
"""Of the decisions about something, as a caller saw it; 0 before the first one."""
ABOUT_VERSION = "The `version` of the state that you decided from; if it has changed, the answer is a 409."
SubjectText = Annotated[
    str, Field(max_length=400, description="`kind:name`, such as `module:reports`.", examples=["module:reports"])
]


class Answer(BaseModel):
    """What the API says: read off the attributes of the value that it is about."""

    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class Order(BaseModel):
    """What the API is told: an unknown name or another type is refused, not guessed at."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Page(Answer, Generic[Item]):
    """One page of a list; rows that come in meanwhile move nothing."""

    items: list[Item]
    next: str
    """To be sent as `after` for the page that follows; empty when there is none."""


class Paging(BaseModel):
    """Which page of a list. Filters are added to it; an unknown one is refused, for it would not narrow."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: int = Field(default=50, ge=1, le=1000)
    after: str = Field(default="", max_length=1000, description="The `next` of the page before.")

    @property
    def page(self) -> values.Page:
        """The page, as the service takes it."""
        return values.Page(self.limit, self.after)


class ProblemItem(Answer):
    """One thing that is wrong with what was sent."""

    pointer: str
    message: str
    suggestion: str


class ProblemDocument(BaseModel):
    """An error, as RFC 9457 has it. `type` and `code` are stable, the texts may change."""

    type: str
    """The path of a page about the code, `/errors/CODE` below the path that the application is mounted at."""
    title: str
    status: int
    code: str
    detail: str
    problems: list[ProblemItem]
    request_id: str
    """Of this HTTP request; the log has it too."""
    subject: str = ""
    operation: str = ""
    target: str = ""
    layer: str = ""
    hint: str = ""
    pending_request_id: str = ""
    """Of a denial: the request that waits for somebody to decide."""


class Access(Answer):
    """Who wants to do what to which target."""

    subject: Named
    resource_type: ResourceType
    operation: Operation
    target: Text


class Rule(Answer):
    """What a rule is about, as it is written."""

    resource_type: ResourceType
    operation: Operation
    target: Text


class Origin(Answer):
    """On whose behalf; empty for what is not there."""

    user_id: Text
    organization_id: Text
    session_key: Text
    task_id: Text


class AccessRequest(Answer):
    """A request for access."""

    id: str
    access: Access
    raw_target: Text
    chain: list[Text]
    origin: Origin
    resume_action: Text
    has_context: bool
    state: RequestState
    first_seen: datetime
    last_seen: datetime
    count: int
    session_ended: bool
    decided_at: datetime | None
    decided_by: Text
    reason: Text
    decision_id: str
    """The decision that answers it; empty while it waits."""
    ended_at: datetime | None
    """When that decision ended: by a revocation, at its time, with its session, or by one to the contrary."""
    ended_by: Text


class Decision(Answer):
    """An approval or a denial."""

    id: str
    access: Access
    effect: Effect
    scope: Scope
    session_key: Text
    created_at: datetime
    created_by: Text
    reason: Text
    request_id: Text
    expires_at: datetime | None
    ended_at: datetime | None
    ended_by: Text
    last_used: datetime | None


class Outcome(Answer):
    """What an attempt to decide came to."""

    decision: Decision | None
    skipped: Text
    """Why nothing was stored, where that is no error; empty otherwise."""


class AuditRecord(Answer):
    """One record of the audit."""

    sequence: int
    at: datetime
    action: AuditAction
    actor: Text
    access: Access | None
    request_id: Text
    before: Members
    after: Members
    previous_hash: str
    hash: str


class Resume(Answer):
    """What became of the action that goes on after an approval."""

    id: str
    action: Text
    state: ResumeState
    attempts: int
    created_at: datetime
    next_attempt: datetime
    last_error: Text
    finished_at: datetime | None


def subject_of(text: str) -> Subject | None:
    """Return the subject that a filter names; None for no text."""
    return subject_named(text) if text else None


def subject_named(text: str) -> Subject:
    """Return the subject that a text names, or refuse it with where it stood."""
    try:
        return Subject.parse(text)
    except InvalidInputError as error:
        found = (Problem("/subject", problem.message, problem.suggestion) for problem in error.problems)
        raise InvalidInputError(found) from None
