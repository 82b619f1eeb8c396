"""HTTP answers for errors (JSON in the API, a page in the console), the page of each error code, and request ids."""

from __future__ import annotations

import logging
import re
import secrets
from asyncio import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass, field
from http import HTTPStatus
from time import perf_counter
from types import MappingProxyType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException

from democrai_sandbox import errors
from democrai_sandbox.errors.access import AuditRecordUnknown
from democrai_sandbox.errors.catalogue import ENTRIES
from democrai_sandbox.errors.catalogue.pages import plain
from democrai_sandbox.errors.extensions import InstallBusy
from democrai_sandbox.errors.services import EntryConfigured, EntryExists, EntryUnknown
from democrai_sandbox.policy import InvalidInputError, Problem, SandboxError, nearest, pointer_to

from .render import PlainResponse, jsonable, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fastapi import FastAPI
    from fastapi.dependencies.models import Dependant
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_UNKNOWN_NAME = "extra_forbidden"
_UNKNOWN_VALUES = frozenset({"enum", "literal_error"})
_QUOTED = re.compile(r"'([^']*)'")


def suggestion(found: Mapping[str, Any], dependant: Dependant | None) -> str | None:
    """Return the nearest valid name or value for a validation error, or None."""
    if found["type"] in _UNKNOWN_VALUES and isinstance(found.get("input"), str):
        return nearest(found["input"], _QUOTED.findall(str(found.get("ctx", {}).get("expected", ""))))
    source, *place = found["loc"]
    if found["type"] != _UNKNOWN_NAME or dependant is None or not place:
        return None
    fields = dependant.body_params if source == "body" else dependant.query_params
    kinds = _inner((field.field_info.annotation for field in fields), place[:-1])
    return nearest(str(place[-1]), [name for kind in kinds for model in _models(kind) for name in model.model_fields])


def _inner(given: Iterable[Any], place: Sequence[str | int]) -> list[Any]:
    """Return the types at a place within values of these types."""
    found = list(given)
    for step in place:
        models = [model for kind in found for model in _models(kind)]
        if isinstance(step, str):
            found = [model.model_fields[step].annotation for model in models if step in model.model_fields]
        else:
            found = [inner for kind in found for inner in get_args(kind)]
    return found


def _models(kind: Any) -> list[type[BaseModel]]:
    if get_origin(kind) in (Union, UnionType):
        return [model for inner in get_args(kind) for model in _models(inner)]
    return [kind] if isinstance(kind, type) and issubclass(kind, BaseModel) else []


HEADER = "X-Request-Id"
_AGAIN_AFTER = 5
"""Seconds after which a stopping node may have restarted."""
_log = logging.getLogger("democrai_sandbox.console")
_access = logging.getLogger("democrai_sandbox.console.access")
_present: ContextVar[str] = ContextVar("console_request", default="")
MEDIA_TYPE = "application/problem+json"
ERRORS = "/errors/"
"""Path of the error pages; the page of a code is the type of a problem."""
_NOT_JSON = "json_invalid"
_CODES = MappingProxyType({413: "body_too_large"})
"""Codes that differ from the phrase of the status, which depends on the version of Python."""
_MACHINES = ("/api/", "/health/", "/metrics")
"""Paths for programs."""
_MOST_IN_DETAIL = 5


STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = tuple(
    (kind, HTTPStatus(status))
    for status, *kinds in (
        (401, errors.NotSignedIn, errors.SignInRefused),
        (429, errors.SignInThrottled, errors.TaskQueueFull),
        (422, InvalidInputError, errors.ErrorUnknown),
        (403, errors.ConfirmationNeeded, errors.ScopeMissing, errors.ExternalAccessAdminRequired, errors.SandboxDenied),
        (404, errors.AccountUnknown, errors.RequestUnknown, errors.DecisionUnknown, errors.ExtensionUnknown),
        (404, errors.TaskUnknown, EntryUnknown, AuditRecordUnknown),
        (409, errors.AccountConflict, errors.DecisionConflict, errors.IdempotencyConflict, errors.IdempotencyRunning),
        (409, errors.ExtensionBroken, errors.NotInstalled, InstallBusy, EntryExists, EntryConfigured),
        (502, errors.ExtensionFailed, errors.InstallFailed),
        (503, errors.ExternalAccessCheckFailed, errors.RuntimeServiceFailed, errors.KernelLayerError),
        (504, errors.CallTimeout),
    )
    for kind in kinds
)
"""The first match counts. Any other error is a bug in this program, and its text goes to the log only."""


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """Answer for an error."""

    status: int
    code: str
    detail: str = ""
    problems: tuple[Problem, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further members of the document."""
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The phrase of the status."""
        return HTTPStatus(self.status).phrase

    def document(self, root: str = "") -> dict[str, Any]:
        """Return the problem document of RFC 9457 with more members; ``root`` is the mount point of the application."""
        listed = [
            {"pointer": item.pointer, "message": item.message, "suggestion": item.suggestion or ""}
            for item in self.problems
        ]
        kind = f"{root}{ERRORS}{self.code}" if self.code in ENTRIES else "about:blank"
        named = {"type": kind, "title": self.title, "status": self.status, "code": self.code}
        spoken: dict[str, Any] = jsonable({**named, "detail": self.detail, "problems": listed, **self.facts})
        return {**spoken, "request_id": request_id()}


def told(error: Exception, request: Request | None = None) -> ErrorAnswer:
    """Return the answer for an error; with the HTTP request, also suggestions for misspelled names."""
    if isinstance(error, HTTPException):
        return _of_http(error)
    if isinstance(error, RequestValidationError):
        return _of_validation(error, None if request is None else request.scope.get("route"))
    status = status_of(error)
    if status is None or not isinstance(error, SandboxError):
        return ErrorAnswer(
            HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", "Internal error. The log has the reason."
        )
    problems = error.problems if isinstance(error, InvalidInputError | errors.ResultInvalid) else ()
    return ErrorAnswer(status, error.code, _detail(error), problems, _facts(error), _headers(error))


def status_of(error: Exception) -> HTTPStatus | None:
    """Return the status of an error, or None for an unexpected one."""
    return next((status for kind, status in STATUSES if isinstance(error, kind)), None)


def answer(request: Request, said: ErrorAnswer) -> Response:
    """Return the HTTP response: a document for programs, a page for users."""
    if is_for_machines(request):
        document = said.document(request.scope.get("root_path", ""))
        return PlainResponse(document, said.status, said.headers, media_type=MEDIA_TYPE)
    page = render(request, "error.html", status=said.status, told=said, number=request_id())
    page.headers.update(said.headers)
    return page


def is_for_machines(request: Request) -> bool:
    """Return whether the path is one for programs."""
    scope = request.scope
    return bool(scope["path"].removeprefix(scope.get("root_path", "")).startswith(_MACHINES))


def install(app: FastAPI, is_ending: Callable[[], bool]) -> None:
    """Install the error handlers. Call it after all other middleware was added."""
    for kind in (SandboxError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, _answered)
    app.add_middleware(RequestIds, failed=_answered, is_ending=is_ending)


def refusal(scope: Scope, status: int, code: str, detail: str) -> Response:
    """Return the response of a middleware that refuses an HTTP request."""
    return answer(Request(scope), ErrorAnswer(status, code, detail))


def _answered(request: Request, error: Exception) -> Response:
    location = error.location if isinstance(error, errors.NotSignedIn | errors.ConfirmationNeeded) else ""
    if location and not is_for_machines(request):
        return RedirectResponse(location, HTTPStatus.SEE_OTHER)
    said = told(error, request)
    if said.status == HTTPStatus.INTERNAL_SERVER_ERROR or isinstance(error, errors.KernelLayerError):
        log_fault(error)
    return answer(request, said)


def _of_http(error: HTTPException) -> ErrorAnswer:
    """Return the answer for an error of the framework: unknown path, wrong method, unreadable body."""
    phrase = HTTPStatus(error.status_code).phrase
    detail = "" if error.detail == phrase else str(error.detail)
    code = _CODES.get(error.status_code) or phrase.lower().replace(" ", "_")
    return ErrorAnswer(error.status_code, code, detail, headers=error.headers or {})


def _of_validation(error: RequestValidationError, route: object) -> ErrorAnswer:
    """Return the answer for validation errors, without the values."""
    listed = error.errors()
    if unreadable := next((found for found in listed if found["type"] == _NOT_JSON), None):
        text = f"The body is not JSON: {unreadable.get('ctx', {}).get('error', '')}".rstrip(": ")
        return ErrorAnswer(HTTPStatus.BAD_REQUEST, "bad_request", text)
    dependant = route.dependant if isinstance(route, APIRoute) else None
    problems = tuple(
        Problem(pointer_to("", *found["loc"][1:]), str(found["msg"]), suggestion(found, dependant)) for found in listed
    )
    detail = "; ".join(map(str, problems[:_MOST_IN_DETAIL]))
    return ErrorAnswer(HTTPStatus.UNPROCESSABLE_ENTITY, InvalidInputError.code, detail, problems)


def _detail(error: SandboxError) -> str:
    """Return the text of an error for the caller."""
    if isinstance(error, errors.ExternalAccessAdminRequired):
        return error.why or str(error)
    if isinstance(error, errors.StoreBusy):
        return f"All {error.connections} connections to the database (database.connections) are in use: retry soon."
    if isinstance(error, errors.ExternalAccessCheckFailed) and not isinstance(error.__cause__, errors.KernelLayerError):
        return "The database cannot be used. Nothing was changed, and nothing new is allowed until it works again."
    if isinstance(error, errors.KernelLayerError | errors.ExternalAccessCheckFailed):
        return "The kernel layer does not work. The status page and the log have the reason."
    return str(error)


def _facts(error: SandboxError) -> Mapping[str, Any]:
    """Return the parts of a denial, so that the caller can show them or wait for the request."""
    if isinstance(error, errors.ExtensionFailed) and error.advice:
        return {"hint": error.advice}
    if not isinstance(error, errors.SandboxDenied):
        return {}
    pending = getattr(error, "request_id", None) or ""
    facts = {"subject": f"{error.subject_kind}:{error.subject}", "operation": error.operation, "target": error.target}
    return {**facts, "layer": error.layer, "hint": error.hint, "pending_request_id": pending}


def _headers(error: SandboxError) -> dict[str, str]:
    if isinstance(error, errors.NotSignedIn):
        return {"WWW-Authenticate": "Bearer"}
    if isinstance(error, errors.SignInThrottled):
        return {"Retry-After": str(error.retry_after)}
    if isinstance(error, errors.IdempotencyRunning):
        return {"Retry-After": "1"}
    return {}


error_pages = APIRouter(tags=["errors"])


@error_pages.get(ERRORS + "{code}", response_class=HTMLResponse)
def show_error(request: Request, code: str) -> HTMLResponse:
    """Show the meaning, cause, fix and example of a code."""
    entry = ENTRIES.get(code)
    if entry is None:
        raise HTTPException(404)
    parts = (("Meaning", entry.meaning), ("Cause", entry.cause), ("Fix", entry.fix))
    shown = [(head, plain(text)) for head, text in parts]
    words = [(one.word, plain(one.meaning), plain(one.fix)) for one in entry.words]
    return render(request, "error_code.html", entry=entry, sections=shown, words=words)


def request_id() -> str:
    """Return the id of the current HTTP request for log lines, or an empty text."""
    return _present.get()


def log_fault(error: Exception) -> None:
    """Log an error under the request id that the user sees."""
    number = request_id()
    _log.error("request %s failed", number, exc_info=error, extra={"request_id": number})


class RequestIds:
    """Outermost middleware: assigns request ids, logs answers, and handles uncaught errors.

    An id sent by the client is ignored, because it would let strangers write into the log.
    """

    def __init__(
        self, app: ASGIApp, *, failed: Callable[[Request, Exception], Response], is_ending: Callable[[], bool]
    ) -> None:
        """Take ``failed``, which answers an exception, and ``is_ending``: the node is stopping and cancels requests."""
        self._app = app
        self._failed = failed
        self._is_ending = is_ending

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        number = secrets.token_hex(8)
        token = _present.set(number)
        begun = perf_counter()
        status = 0

        async def numbered(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[HEADER] = number
            await send(message)

        try:
            await self._app(scope, receive, numbered)
        except Exception as error:
            if status:
                log_fault(error)
                raise  # the answer has been sent in part and can only be cut off
            await self._failed(Request(scope, receive), error)(scope, receive, numbered)
        except CancelledError:
            if not status and self._is_ending():  # otherwise the client has disconnected
                await self._failed(Request(scope, receive), _cut_off())(scope, receive, numbered)
            raise
        finally:
            _tell(scope, number, status, perf_counter() - begun)
            _present.reset(token)


def _cut_off() -> HTTPException:
    """Return the answer to an HTTP request that outlived a stopping node."""
    words = "This node is stopping and did not wait for the answer. The operation may or may not have completed."
    return HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, words, {"Retry-After": str(_AGAIN_AFTER)})


def _tell(scope: Scope, number: str, status: int, seconds: float) -> None:
    """Log one line, with the path as sent (ASCII) and without the query, which can contain private data."""
    path = bytes(scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1")
    client = (scope.get("client") or ("",))[0]
    facts = {"request_id": number, "method": scope["method"], "path": path, "status": status, "client": client}
    facts["milliseconds"] = round(seconds * 1000, 1)
    _access.info("%s %s %s %s", number, scope["method"], path, status, extra=facts)
