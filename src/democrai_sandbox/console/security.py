"""The doors before every page and answer: which host is meant, where a form comes from, how much may be sent.

A browser says of each request where it comes from, in headers that no page can set. That is asked, and no secret in
every form: there is none to leak, and none to forget.
"""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException

from democrai_sandbox.host.accounts import bearer_of
from democrai_sandbox.host.accounts.desk import is_secure

from .problems import refusal

if TYPE_CHECKING:
    from fastapi import FastAPI
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
"""Asked by load balancers, which know a node by names of their own."""
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


def protect(app: FastAPI, sandbox: Sandbox) -> None:
    """Put the doors before an application. What they refuse is answered like any other error."""
    app.add_middleware(Doors, sandbox=sandbox)


def dress(app: FastAPI, sandbox: Sandbox) -> None:
    """Give every answer its headers, those about faults of the program too. The last middleware to be added."""
    app.add_middleware(AnswerHeaders, secure=is_secure(sandbox.settings))


class AnswerHeaders:
    """Tells browsers what a page may do: nothing but what is served here."""

    def __init__(self, app: ASGIApp, *, secure: bool) -> None:
        """``secure``: people come over TLS, and are to go on doing so."""
        self._app = app
        self._headers = dict(_HEADERS)
        if secure:
            self._headers["Strict-Transport-Security"] = f"max-age={_YEAR}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        kept = _caching(scope)  # now: on the way the scope gets another root

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(self._headers)
                headers["Cache-Control"] = kept if message["status"] < _ERRORS else _KEPT_BY_NOBODY
            await send(message)

        await self._app(scope, receive, dressed)


class Doors:
    """Refuses what is meant for another host, what another site makes a browser send, and what is too large."""

    def __init__(self, app: ASGIApp, *, sandbox: Sandbox) -> None:
        """Read from the configuration what this host is called."""
        self._app = app
        public = urlsplit(sandbox.settings.server.public_url)
        self._public_origin = f"{public.scheme}://{public.netloc}".lower() if public.netloc else ""
        self._names = {"localhost", sandbox.settings.server.host, public.hostname or "localhost"}
        # An application that knows its own people knows its own names; ours are not told of them.
        self._any_host = sandbox.accounts is None and not self._public_origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or turn it away."""
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
        """Return status, code and text of a refusal; None for what may go on."""
        path = route_path(scope)
        # Pages know no tokens: there such a header would only open the doors to whoever sends it.
        by_token = path.startswith(_BY_TOKEN) and bearer_of(_joined(headers, "authorization")) is not None
        if not (by_token or path in _PROBES or self._is_our_host(_joined(headers, "host"))):
            text = "This is not the host that was asked for. If people call it so, set server.public_url to that."
            return 421, "host_unknown", text
        # Without a cookie there is nobody whom a foreign page could act for; a program that is no browser sends none.
        may_lack = path.startswith(_API) and "cookie" not in headers
        if scope["method"] not in _SAFE and not by_token and not self._is_our_page(scope, headers, may_lack=may_lack):
            return 403, "origin_refused", "This was not sent by a page of this site. Nothing was changed."
        if _length(headers) > _largest(scope):
            return 413, "body_too_large", f"More was sent than the {_largest(scope)} bytes that are taken here."
        return None

    def _is_our_host(self, host: str) -> bool:
        """Tell whether a name is one of ours. A number is nobody's name: only names can be made to lead elsewhere."""
        if self._any_host:
            return True
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self._names or _is_number(name)

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
    """Return the path below where this application is mounted."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _joined(headers: Headers, name: str) -> str:
    """Return a header; one that came twice is not like any that came once."""
    return ", ".join(headers.getlist(name))


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _largest(scope: Scope) -> int:
    return LARGEST_DOCUMENT if route_path(scope).startswith(_API) else LARGEST_FORM


def _length(headers: Headers) -> int:
    """Return how much is announced; what is not announced is counted as it comes."""
    text = headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0  # noqa: PLR2004 - 64 bits


def limited(receive: Receive, largest: int, seconds: float = BODY_SECONDS) -> Receive:
    """Return a way to receive a body that ends with an error where it becomes too large, or takes too long."""
    received = 0
    late = asyncio.get_running_loop().time() + seconds
    is_whole = False

    async def counted() -> Message:
        nonlocal received, is_whole
        if is_whole:
            return await receive()  # waits for the other side to leave
        try:
            async with asyncio.timeout_at(late):
                message = await receive()
        except TimeoutError:
            text = f"What was announced did not come within {seconds:g} seconds."
            raise HTTPException(408, text, {"Connection": "close"}) from None
        is_whole = not message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > largest:
            raise HTTPException(413, f"More was sent than the {largest} bytes that are taken here.")
        return message

    return counted


def _caching(scope: Scope) -> str:
    """Return who may keep an answer: nobody, but for files whose address changes when they do."""
    if not route_path(scope).startswith(_STATIC):
        return _KEPT_BY_NOBODY
    return f"public, max-age={_YEAR}, immutable" if scope.get("query_string") else "no-cache"
