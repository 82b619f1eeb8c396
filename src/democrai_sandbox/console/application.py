"""Web application: the API, the pages and their middleware, which checks hosts, origins and bodies of requests."""

from __future__ import annotations

import asyncio
from importlib import import_module
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from democrai_sandbox.host.accounts import bearer_of
from democrai_sandbox.host.accounts.accounts import is_secure

from . import api, pages, problems, render
from .problems import refusal

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from democrai_sandbox.host.sandbox import Sandbox


LARGEST_FORM = 64 * 1024
LARGEST_DOCUMENT = 1024 * 1024
BODY_SECONDS = 60.0
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES = frozenset({"same-origin", "none"})
_API = "/api/"
_BY_TOKEN = (_API, "/metrics")
_PROBES = frozenset({"/health/live", "/health/ready"})
"""Paths for load balancers, which can use any host name."""
_STATIC = "/static/"
_CONTENT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = MappingProxyType(
    {
        "Content-Security-Policy": _CONTENT,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
)
_YEAR = 365 * 24 * 3600
_ERRORS = 400
_KEPT_BY_NOBODY = "no-store"


class AnswerHeaders:
    """Middleware that adds security headers: pages may load only content of this server."""

    def __init__(self, app: ASGIApp, *, secure: bool) -> None:
        """Take ``secure``: users connect over TLS, and must keep doing so."""
        self._app = app
        self._headers = dict(_HEADERS)
        if secure:
            self._headers["Strict-Transport-Security"] = f"max-age={_YEAR}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kept = _caching(scope)  # before the application changes the root path in the scope

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers["Cache-Control"] = kept if message["status"] < _ERRORS else _KEPT_BY_NOBODY
            await send(message)

        await self._app(scope, receive, dressed)


class RequestChecks:
    """Middleware that refuses requests for other hosts, from other sites, and with large bodies.

    Browsers send the origin of each HTTP request in headers that no page can set. The check uses these headers instead
    of a secret in every form, which could leak or be forgotten.
    """

    def __init__(self, app: ASGIApp, *, sandbox: Sandbox) -> None:
        self._app = app
        public = urlsplit(sandbox.settings.server.public_url)
        self._public_origin = f"{public.scheme}://{public.netloc}".lower() if public.netloc else ""
        self._names = {"localhost", sandbox.settings.server.host, public.hostname or "localhost"}
        # An embedding application with its own users checks its host names itself.
        self._any_host = sandbox.accounts is None and not self._public_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle or refuse one HTTP request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refused = self._refused(scope, headers)
        if refused is not None:
            await refusal(scope, *refused)(scope, receive, send)
            return
        await self._app(scope, limited(receive, _largest(scope)), send)

    def _refused(self, scope: Scope, headers: Headers) -> tuple[int, str, str] | None:
        """Return status, code and text of a refusal, or None."""
        path = route_path(scope)
        # Pages do not accept tokens: such a header would only bypass the check.
        by_token = path.startswith(_BY_TOKEN) and bearer_of(_joined(headers, "authorization")) is not None
        if not (by_token or path in _PROBES or self._is_our_host(_joined(headers, "host"))):
            text = "This server does not have this host name. If users use the name, set server.public_url to it."
            return 421, "host_unknown", text
        # Without a cookie, a foreign page cannot act for a user; programs other than browsers send none.
        may_lack = path.startswith(_API) and "cookie" not in headers
        if scope["method"] not in _SAFE and not by_token and not self._is_our_page(scope, headers, may_lack=may_lack):
            return 403, "origin_refused", "The form was not sent by a page of this site. Nothing was changed."
        if _length(headers) > _largest(scope):
            return 413, "body_too_large", f"The body is larger than the limit of {_largest(scope)} bytes."
        return None

    def _is_our_host(self, host: str) -> bool:
        """Return whether a host is this server. Addresses are accepted: only names can be rebound by DNS."""
        if self._any_host:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or ip_address(name) is not None
        except ValueError:
            return False

    def _is_our_page(self, scope: Scope, headers: Headers, *, may_lack: bool) -> bool:
        site = _joined(headers, "sec-fetch-site")
        if site:
            return site in _OWN_SITES
        origin = _joined(headers, "origin").lower()
        if not origin:
            return may_lack
        own = f"{scope.get('scheme', 'http')}://{_joined(headers, 'host')}".lower()
        return origin in {own, self._public_origin}


def route_path(scope: Scope) -> str:
    """Return the path below the mount point."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _joined(headers: Headers, name: str) -> str:
    """Return a header, joined if it was sent more than once, so that it matches no single value."""
    return ", ".join(headers.getlist(name))


def _largest(scope: Scope) -> int:
    return LARGEST_DOCUMENT if route_path(scope).startswith(_API) else LARGEST_FORM


def _length(headers: Headers) -> int:
    """Return the announced length of the body; without one, the bytes are counted on receipt."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0  # noqa: PLR2004 - 64 bits


def limited(receive: Receive, largest: int, seconds: float = BODY_SECONDS) -> Receive:
    """Return a ``receive`` that raises an error for a body that is too large or too slow."""
    received = 0
    late = asyncio.get_running_loop().time() + seconds
    is_whole = False

    async def counted() -> Message:
        nonlocal received, is_whole
        if is_whole:
            return await receive()  # waits until the client disconnects
        try:
            async with asyncio.timeout_at(late):
                message = await receive()
        except TimeoutError:
            text = f"The body did not arrive within {seconds:g} seconds."
            raise HTTPException(408, text, {"Connection": "close"}) from None
        is_whole = not message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > largest:
            raise HTTPException(413, f"The body is larger than the limit of {largest} bytes.")
        return message

    return counted


def _caching(scope: Scope) -> str:
    """Return the cache policy: none, except for static files, whose address changes with their content."""
    if not route_path(scope).startswith(_STATIC):
        return _KEPT_BY_NOBODY
    return f"public, max-age={_YEAR}, immutable" if scope.get("query_string") else "no-cache"


# FastAPI imports it with the first HTTP request; import it now, because nothing should be imported beside extensions.
_IMPORTED_LATE = ("anyio._backends._asyncio", "anyio._core._fileio")
_FILES = StaticFiles(directory=Path(__file__).with_name("static"))


def create_app(sandbox: Sandbox) -> FastAPI:
    """Return the application of a sandbox, which it neither starts nor stops, to be served or mounted in another."""
    app = FastAPI(
        title="democrai-sandbox",
        version=version("democrai-sandbox"),
        openapi_url="/api/v1/openapi.json",
        docs_url=None,  # both pages load scripts from other sites
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.sandbox = sandbox
    render.prepare()
    for name in _IMPORTED_LATE:
        import_module(name)
    for router in api.routers():
        app.include_router(router, prefix="/api/v1")
    for router in api.unversioned():
        app.include_router(router, include_in_schema=False)
    if sandbox.settings.console.enabled:
        for router in pages.routers():
            app.include_router(router, include_in_schema=False)
        app.add_route("/static/{name:path}", _static, methods=["GET", "HEAD"], include_in_schema=False)
    api.document(app)
    app.add_middleware(RequestChecks, sandbox=sandbox)  # refusals are answered like other errors
    problems.install(app, sandbox.closing.is_set)
    app.add_middleware(AnswerHeaders, secure=is_secure(sandbox.settings))  # last, also for internal errors
    return app


async def _static(request: Request) -> Response:
    """Return a static file. A mount would change the root path that error pages use."""
    return await _FILES.get_response(request.path_params["name"], request.scope)
