"""The OpenAPI document: what every operation may answer besides its result, and how callers say who they are."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict

from democrai_sandbox.console.plain import PlainResponse
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
        401: "Nobody is known to have sent this: no token or session, or one that is over.",
        403: "The token lacks the scope, the person may not do this, or the sandbox denied it.",
        404: "There is no such thing.",
        409: "Somebody else was first, or what it needs is not in order; nothing was changed.",
        413: "The body is too large.",
        422: "What was sent is not valid; every problem is listed.",
        429: "There is too much of it at the moment.",
        500: "A fault of this program; the log has the request id.",
        502: "The extension's own code failed.",
        503: "The database or a service of the runtime cannot be reached.",
        504: "The extension took longer than it may.",
    }
)
_ABOUT = """Everything that the console shows and does, for programs.

Send a token as `Authorization: Bearer dsb_...`; a token acts for its owner, within its scopes. A person's session
cookie works as well, from pages of this origin. Times are RFC 3339 in UTC. Errors are `application/problem+json`; their
`type` leads to a page about the error. A method that a path does not take is a 405 with `Allow`."""
_SCHEMES = {
    "token": {"type": "http", "scheme": "bearer", "description": "A token, made on the account page."},
    "session": {"type": "apiKey", "in": "cookie", "name": "democrai_session", "description": "A person's session."},
}


def router(noun: str) -> APIRouter:
    """Return a router whose answers every reader of JSON takes, and whose operations go by the names of functions."""
    return APIRouter(
        tags=[noun],
        default_response_class=PlainResponse,
        generate_unique_id_function=lambda route: route.name,
    )


class _NoQuery(BaseModel):
    """The query of an operation that has no query parameters."""

    model_config = ConfigDict(extra="forbid")


def _refuse_query(query: Annotated[_NoQuery, Query()]) -> None:
    """Refuse every query parameter, together with all other problems of the request."""


def told(scope: Scope | None, *statuses: int, body: bool = False, query: bool = False) -> dict[str, Any]:
    """Return how an operation is registered: the scope of ``holder``, and the refusals it may meet.

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
    """Have an application describe itself with what the framework does not know by itself."""

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _described(app)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign] # the documented way


def _described(app: FastAPI) -> dict[str, Any]:
    made = get_openapi(
        title=app.title,
        version=app.version,
        summary="Access of extensions: asked, decided, seen.",
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
    parts["securitySchemes"] = _SCHEMES
    made["security"] = [{name: []} for name in _SCHEMES]
    return made
