"""Authentication and permissions: the user of an HTTP request, the sign-in redirect, and the password confirmation."""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations

from democrai_sandbox import errors
from democrai_sandbox.access.caller import Caller  # noqa: TC001 - the same
from democrai_sandbox.access.verdicts import RiskLevel, assess
from democrai_sandbox.host.accounts.accounts import PLAIN_COOKIE, SECURE_COOKIE, is_secure
from democrai_sandbox.host.authentication import Identity, Visit
from democrai_sandbox.runtime.access_environment import serving

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from democrai_sandbox.access.administration import Administration
    from democrai_sandbox.access.values import AccessTuple
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.host.scopes import Scope

_SESSION_COOKIES = (SECURE_COOKIE, PLAIN_COOKIE)


class Visitor(NamedTuple):
    """Signed-in user, or a program with a token of a user."""

    identity: Identity
    caller: Caller
    name: str
    """Display name."""

    @property
    def may_decide(self) -> bool:
        """Whether the user may approve and deny."""
        return self.caller.may_decide


def sandbox_of(request: Request) -> Sandbox:
    """Return the sandbox of the application."""
    found: Sandbox = request.app.state.sandbox
    return found


class ServedRequest(NamedTuple):
    """HTTP request with its user."""

    request: Request
    visitor: Visitor

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox of the application."""
        return sandbox_of(self.request)

    @property
    def caller(self) -> Caller:
        """The user, for the services."""
        return self.visitor.caller

    @contextmanager
    def administration(self) -> Iterator[Administration]:
        """Yield the decisions and their queries, which serve the user during the block."""
        with serving(self.caller):
            yield self.sandbox.access.administration


def person(request: Request) -> Visitor:
    """Return the user of a page, or redirect to the sign-in page. Tokens do not open pages."""
    visitor = person_if_any(request)
    if visitor is None:
        raise errors.NotSignedIn(sign_in_at(request))
    return visitor


def person_if_any(request: Request) -> Visitor | None:
    """Return the user of a page, or None without a session, so that a form can keep its fields."""
    visitor = visitor_of(request)
    if visitor is None or visitor.identity.scopes is not None:
        return None
    request.state.visitor = visitor  # error pages show the user, too
    return visitor


def holder(scope: Scope) -> Callable[[Request], ServedRequest]:
    """Return a dependency that returns the API call, and refuses one without a session or the scope."""

    def found(request: Request) -> ServedRequest:
        return ServedRequest(request, admitted(request, visitor_of(request), scope))

    return found


def admitted(request: Request, visitor: Visitor | None, scope: Scope) -> Visitor:
    """Return the API caller; refuse a call without a session or a token with the scope."""
    if visitor is None:
        raise errors.NotSignedIn(sign_in_at(request))
    if visitor.identity.scopes is not None and scope not in visitor.identity.scopes:
        raise errors.ScopeMissing(scope)
    return visitor


def visitor_of(request: Request) -> Visitor | None:
    """Return the user of an HTTP request from the database, or None without one or for a disabled user."""
    sandbox = sandbox_of(request)
    identity = sandbox.authenticator.identify(visit_of(request))
    if identity is None:
        return None
    roles = sandbox.roles.roles(identity.user_id)
    return None if roles is None else Visitor(identity, sandbox.caller_with(identity, roles), roles.name)


def require_fresh(request: Request, visitor: Visitor, *, back: str = "", within: timedelta = timedelta(0)) -> None:
    """Redirect a user to the password confirmation if the last one is too old.

    ``back`` is the path to return to, by default that of the HTTP request. ``within`` is the maximum age, by default
    that of the configuration. Users of an embedding application have no password here.
    """
    sandbox = sandbox_of(request)
    late = within or timedelta(minutes=sandbox.settings.console.reauth_minutes)
    if not late or sandbox.accounts is None or visitor.identity.scopes is not None:
        return
    if not sandbox.accounts.is_confirmed(visitor.identity.session_key, late):
        raise errors.ConfirmationNeeded(f"{own_path(request, '/account/confirm')}?next={quote(back or _page(request))}")


def visit_of(request: Request) -> Visit:
    """Return the data of an HTTP request before authentication."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        # Joined as in HTTP, so that neither of two values passes for the whole.
        headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in headers else value
    proxies = sandbox_of(request).settings.server.trusted_proxies
    address = client_address(request.client.host if request.client else "", headers.get("x-forwarded-for", ""), proxies)
    return Visit(headers, _cookies(headers.get("cookie", "")), address, request.url.path)


def client_address(peer: str, forwarded: str, proxies: Sequence[str]) -> str:
    """Return the client address: the last forwarded address that is not a trusted proxy."""
    found = _one_notation(peer) or peer
    for given in reversed(forwarded.split(",")):
        if found not in proxies or not (before := _one_notation(given.strip())):
            return found
        found = before
    return found


def _one_notation(address: str) -> str:
    """Return an address in its usual form, or an empty text. A dual-stack listener maps IPv4 addresses."""
    try:
        found = ip_address(address)
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


def cookie_options(request: Request) -> dict[str, Any]:
    """Return the options of all cookies: for all paths, hidden from scripts, and over TLS only if users connect so."""
    secure = is_secure(sandbox_of(request).settings)
    return {"path": "/", "secure": secure, "httponly": True, "samesite": "lax"}


def own_path(request: Request, path: str) -> str:
    """Return a path of this application for browsers, including the mount point."""
    return f"{request.scope.get('root_path', '')}{path}"


def _page(request: Request) -> str:
    """Return the page to return to: the current one, or the first page after a form."""
    if request.method not in {"GET", "HEAD"}:
        return own_path(request, "/")
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def sign_in_at(request: Request, back: str = "") -> str:
    """Return the address of the sign-in page, which returns to ``back``, by default the current page."""
    sandbox = sandbox_of(request)
    url = sandbox.authenticator.login_url
    if sandbox.accounts is not None:
        url = own_path(request, url)
    return f"{url}{'&' if '?' in url else '?'}next={quote(back or _page(request))}"


def _cookies(header: str) -> dict[str, str]:
    """Return cookies by name. Two different values of one are dropped: another service may have set one."""
    found: dict[str, str] = {}
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name in _SESSION_COOKIES and found.get(name, value) != value:
            value = ""
        found[name] = value
    return found


def require_administrator(visitor: Visitor) -> None:
    """Refuse a user who may not decide, with the error of the access service."""
    if not visitor.may_decide:
        raise errors.ExternalAccessAdminRequired("this needs an administrator: the super role, and no organization")


_LONGEST = 2000
_STRANGE = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\]")
"""Characters that addresses of the console never contain, and that browsers drop or treat as a slash."""
_NOT_AGAIN = ("/login", "/logout", "/account/confirm", "/static/", "/api/", "/live")


def safe_next(request: Request, wanted: str) -> str:
    """Return the path to redirect to; the first page if the wanted address is not a page of the console."""
    first = own_path(request, "/")
    if not wanted or len(wanted) > _LONGEST or _STRANGE.search(wanted):
        return first
    # urlsplit finds no host in ///evil, but browsers open evil.
    path = re.split(r"[?#]", wanted, maxsplit=1)[0]
    if not path.startswith(first) or "//" in path:
        return first
    if {".", ".."} & set(unquote(path).replace("\\", "/").split("/")):
        return first
    return first if path.removeprefix(first[:-1]).startswith(_NOT_AGAIN) else wanted


_RECENTLY = timedelta(minutes=5)
"""Maximum age of the password for an approval of high risk over the API, which has no form."""
_MINUTE = 60


def is_high_risk(access: AccessTuple) -> bool:
    """Return whether an approval is of high risk. Earlier decisions cannot raise the risk and are not read."""
    return assess(access).level is RiskLevel.HIGH


def require_recent_password(request: Request, visitor: Visitor, accesses: Iterable[AccessTuple]) -> None:
    """Refuse a permanent approval over the API if the session must confirm its password first."""
    require_fresh(request, visitor)
    if sandbox_of(request).settings.console.reauth_high_risk and any(map(is_high_risk, accesses)):
        require_fresh(request, visitor, within=_RECENTLY)


def wait_words(seconds: int) -> str:
    """Return a waiting time in words."""
    if seconds < _MINUTE:
        return f"{seconds} second" + ("" if seconds == 1 else "s")
    minutes = -(-seconds // _MINUTE)
    return f"{minutes} minute" + ("" if minutes == 1 else "s")
