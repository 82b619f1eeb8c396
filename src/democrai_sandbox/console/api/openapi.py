"""OpenAPI: schemas that several calls share, errors of every operation, authentication, and ``Idempotency-Key``."""

from __future__ import annotations

import json
import logging
import re
from datetime import datetime
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeVar

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from democrai_sandbox.access import values
from democrai_sandbox.console.auth import require_administrator, sandbox_of
from democrai_sandbox.console.problems import MEDIA_TYPE
from democrai_sandbox.console.render import PlainResponse, jsonable
from democrai_sandbox.errors import StoreUnavailable
from democrai_sandbox.policy import InvalidInputError, Operation, Problem, ResourceType, Subject

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastapi import FastAPI

    from democrai_sandbox.console.auth import Visitor
    from democrai_sandbox.host.scopes import Scope

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


_REFERENCE = "#/components/schemas/{model}"
_COMMON = (401, 403, 422, 500, 503)
_WITH_A_BODY = (400, 413)
_WORDS = MappingProxyType(
    {
        400: "The body cannot be read.",
        401: "No valid token or session.",
        403: "The token lacks the scope, the user may not do this, or the sandbox denied it.",
        404: "The object does not exist.",
        409: "A conflict with another change or with the current state; nothing was changed.",
        413: "The body is too large.",
        422: "The input is invalid; every problem is listed.",
        429: "Too many calls; retry later.",
        500: "Internal error; the log has the request id.",
        502: "The code of the extension failed.",
        503: "The database or a service of the runtime cannot be reached.",
        504: "The extension exceeded its timeout.",
    }
)
_PUBLISHED = MappingProxyType(
    {
        "AccessItem": "Access",
        "AccessReason": "Reason",
        "AccessVerdict": "Verdict",
        "AuditItem": "AuditRecord",
        "AuditVerification": "AuditReport",
        "CallResult": "Result",
        "DecisionEffect": "Effect",
        "DecisionItem": "Decision",
        "DecisionResult": "Outcome",
        "DecisionScope": "Scope",
        "ExplainedLayer": "Layer",
        "InstallSummary": "Install",
        "LatestOutput": "Printed",
        "LayerEffect": "Answer",
        "ListPage": "Page",
        "ManifestFinding": "Finding",
        "ManifestRule": "Rule",
        "ModelItem": "ModelEntry",
        "ModuleCall": "Call",
        "ModuleFunction": "Offered",
        "ReportArea": "Area",
        "ReportLineState": "LineState",
        "RequestGroupItem": "RequestGroup",
        "RequestOrigin": "Origin",
        "ResumeStatus": "Resume",
        "ResumptionState": "ResumeState",
        "RiskLevel": "Risk",
        "SessionItem": "Session",
        "StartedTask": "Started",
        "SubjectObservation": "Observation",
        "SubjectTotals": "SubjectCounts",
        "TargetChoice": "Choice",
        "TaskUser": "TaskOrigin",
        "TokenItem": "Token",
    }
)
"""Names of the document that differ from the names of their classes; clients generate code from them."""
_CLASS_NAME = re.compile(r"[A-Za-z]+")
_ABOUT = """All functions of the console, for programs.

Send a token as `Authorization: Bearer dsb_...`; a token acts for its owner, within its scopes. The session cookie
of a user works as well, from pages of this origin. Times are RFC 3339 in UTC. Errors are `application/problem+json`;
their `type` is the address of a page about the error. A method that a path does not accept is a 405 with `Allow`."""
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, created on the account page."},
    "session": {"type": "apiKey", "in": "cookie", "name": "democrai_session", "description": "The session of a user."},
}


def router(noun: str) -> APIRouter:
    """Return a router with portable JSON answers, whose operations are named after their functions."""
    return APIRouter(
        tags=[noun],
        default_response_class=PlainResponse,
        generate_unique_id_function=lambda route: route.name,
    )


class _NoQuery(BaseModel):
    """The query of an operation that has no query parameters."""

    model_config = ConfigDict(extra="forbid")


def _refuse_query(query: Annotated[_NoQuery, Query()]) -> None:
    """Refuse every query parameter, together with all other problems of the HTTP request."""


def operation(scope: Scope | None, *statuses: int, body: bool = False, query: bool = False) -> dict[str, Any]:
    """Return the options of an operation: the scope of ``holder``, and its errors.

    Those that all may meet are added, and with ``body`` those of operations that read one. An operation without
    ``query`` refuses every query parameter; one with it has a model of its parameters, which refuses unknown names.
    """
    shown = {*_COMMON, *statuses, *(_WITH_A_BODY if body else ())}
    content = {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model=ProblemDocument.__name__)}}}
    responses = {status: {"description": _WORDS[status], "content": content} for status in sorted(shown)}
    return {
        "responses": responses,
        "openapi_extra": {"x-scope": scope.value} if scope else {},
        "dependencies": [] if query else [Depends(_refuse_query)],
    }


def document(app: FastAPI) -> None:
    """Add to the OpenAPI document of an application the parts that the framework does not generate."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign] # the documented way


def _described(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title=app.title,
        version=app.version,
        summary="Access of extensions: requests, decisions, observations.",
        description=_ABOUT,
        routes=app.routes,
    )
    parts = made.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for model in (ProblemItem, ProblemDocument):
        schemas[model.__name__] = model.model_json_schema(ref_template=_REFERENCE)
        schemas[model.__name__].pop("$defs", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    parts["schemas"] = {
        _published(name): {**schema, "title": _published(schema["title"])} for name, schema in schemas.items()
    }
    _publish_references(made)
    parts["securitySchemes"] = _SCHEMES
    made["security"] = [{name: []} for name in _SCHEMES]
    return made


def _published(name: str) -> str:
    """Return the name of the document for a class, which can be generic."""
    return _CLASS_NAME.sub(lambda found: _PUBLISHED.get(found[0], found[0]), name)


def _publish_references(value: Any) -> None:
    """Let all references within a value use the names of the document."""
    if isinstance(value, dict):
        if "$ref" in value:
            prefix, _, name = value["$ref"].rpartition("/")
            value["$ref"] = f"{prefix}/{_published(name)}"
        value = value.values()
    elif not isinstance(value, list):
        return
    for inner in value:
        _publish_references(inner)


_KEY_HEADER = "Idempotency-Key"
_LONGEST_KEY = 200
_ABOUT_KEY = (
    "Makes the operation safe to repeat: the same key and body return the first answer for 24 hours, the same key "
    "with another body is a conflict. Keys belong to the caller. Printable ASCII without spaces."
)
_log = logging.getLogger("democrai_sandbox.console")
Made = TypeVar("Made", bound=BaseModel)


class Repeatable:
    """HTTP request with its idempotency key, if any."""

    def __init__(self, request: Request, key: str | None) -> None:
        self._request = request
        self._key = key
        self._keys = sandbox_of(request).idempotency

    def run(
        self, visitor: Visitor, order: BaseModel, kind: type[Made], act: Callable[[], Made], *, for_all: bool = False
    ) -> Made:
        """Return the result of ``act``, or the stored result of the same call.

        Unless ``for_all`` is set, the caller must be allowed to decide, also for a stored result.
        """
        if self._key is None:
            return act()
        if not for_all:
            require_administrator(visitor)
        caller = visitor.identity.user_id
        content = [self._request.method, self._request.scope["path"], order.model_dump(mode="json")]
        kept = self._keys.begin(caller, self._key, sha256(json.dumps(content).encode()).hexdigest())
        if kept is not None:
            return kind.model_validate_json(kept)
        try:
            made = act()
        except BaseException:
            self._put_down(lambda: self._keys.abandon(caller, str(self._key)))
            raise
        self._put_down(lambda: self._keys.finish(caller, str(self._key), made.model_dump_json()))
        return made

    @staticmethod
    def _put_down(work: Callable[[], Any]) -> None:
        """Update a key after the operation, which stays valid even if the database is unreachable now."""
        try:
            work()
        except StoreUnavailable:
            _log.warning("an idempotency key could not be changed", exc_info=True)


def _repeatable(
    request: Request,
    key: Annotated[
        str | None,
        Header(alias=_KEY_HEADER, min_length=1, max_length=_LONGEST_KEY, pattern="^[!-~]+$", description=_ABOUT_KEY),
    ] = None,
) -> Repeatable:
    if len(request.headers.getlist(_KEY_HEADER)) > 1:
        raise InvalidInputError.of("the header was sent more than once", pointer=f"/{_KEY_HEADER}")
    return Repeatable(request, key)


Repeating = Annotated[Repeatable, Depends(_repeatable)]
