"""OpenAPI document: errors of every operation, and authentication."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict

from democrai_sandbox.console.plain_json import PlainResponse
from democrai_sandbox.console.problems import MEDIA_TYPE

from .schemas import ProblemDocument, ProblemItem

if TYPE_CHECKING:
    from fastapi import FastAPI

    from democrai_sandbox.host.scopes import Scope

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
