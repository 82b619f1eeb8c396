"""Who a request comes from: dependencies for pages and for the API, and the way to a sign-in."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations

from democrai_sandbox.access.identity import Caller  # noqa: TC001 - the same
from democrai_sandbox.errors import ConfirmationNeeded, NotSignedIn, ScopeMissing
from democrai_sandbox.host.accounts.desk import PLAIN_COOKIE, SECURE_COOKIE
from democrai_sandbox.host.interface import Identity, Visit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.host.scopes import Scope

_SESSION_COOKIES = (SECURE_COOKIE, PLAIN_COOKIE)


class Visitor(NamedTuple):
    """Somebody who is signed in, or a machine that acts for somebody."""

    identity: Identity
    caller: Caller
    name: str
    """For people to read."""

    @property
    def may_decide(self) -> bool:
        """Whether this one may approve and deny."""
        return self.caller.may_decide


def sandbox_of(request: Request) -> Sandbox:
    """Return what the application serves."""
    found: Sandbox = request.app.state.sandbox
    return found


def person(request: Request) -> Visitor:
    """Return who looks at a page; nobody is sent to sign in. A machine's token opens no page."""
    visitor = person_if_any(request)
    if visitor is None:
        raise NotSignedIn(sign_in_at(request))
    return visitor


def person_if_any(request: Request) -> Visitor | None:
    """Return who looks at a page; None without a session, where a form keeps its fields before the sign-in."""
    visitor = visitor_of(request)
    if visitor is None or visitor.identity.scopes is not None:
        return None
    request.state.visitor = visitor  # an error page shows who is signed in, too
    return visitor


def holder(scope: Scope) -> Callable[[Request], Visitor]:
    """Return a dependency that gives who calls the API, and refuses nobody and a token without the scope."""

    def found(request: Request) -> Visitor:
        return admitted(request, visitor_of(request), scope)

    return found


def admitted(request: Request, visitor: Visitor | None, scope: Scope) -> Visitor:
    """Return who calls the API; refuse a call without a session or a token with the scope."""
    if visitor is None:
        raise NotSignedIn(sign_in_at(request))
    if visitor.identity.scopes is not None and scope not in visitor.identity.scopes:
        raise ScopeMissing(scope)
    return visitor


def visitor_of(request: Request) -> Visitor | None:
    """Return who sends a request; None for nobody, and for somebody who is shut out. Looks into the database."""
    sandbox = sandbox_of(request)
    identity = sandbox.authenticator.identify(visit_of(request))
    if identity is None:
        return None
    roles = sandbox.roles.roles(identity.user_id)
    return None if roles is None else Visitor(identity, sandbox.caller_with(identity, roles), roles.name)


def require_fresh(request: Request, visitor: Visitor, *, back: str = "", within: timedelta = timedelta(0)) -> None:
    """Send a person who gave the password too long ago to give it again, when the configuration wants that.

    ``back`` is the path to return to, that of the request by default. Who signs in elsewhere confirms nothing here.
    ``within`` is how old it may be, by default what the configuration says.
    """
    sandbox = sandbox_of(request)
    late = within or timedelta(minutes=sandbox.settings.console.reauth_minutes)
    if not late or sandbox.accounts is None or visitor.identity.scopes is not None:
        return
    if not sandbox.accounts.is_confirmed(visitor.identity.session_key, late):
        raise ConfirmationNeeded(f"{own_path(request, '/account/confirm')}?next={quote(back or _page(request))}")


def visit_of(request: Request) -> Visit:
    """Return what is known of a request before anybody has said who sends it."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        # Joined, as HTTP has it: of two values neither is taken for the whole.
        headers[name] = f"{headers[name]}{'; ' if name == 'cookie' else ', '}{value}" if name in headers else value
    proxies = sandbox_of(request).settings.server.trusted_proxies
    address = client_address(request.client.host if request.client else "", headers.get("x-forwarded-for", ""), proxies)
    return Visit(headers, _cookies(headers.get("cookie", "")), address, request.url.path)


def client_address(peer: str, forwarded: str, proxies: Sequence[str]) -> str:
    """Return the address of the client: of those that were forwarded, the last that no trusted proxy has."""
    found = _one_notation(peer) or peer
    for given in reversed(forwarded.split(",")):
        if found not in proxies or not (before := _one_notation(given.strip())):
            return found
        found = before
    return found


def _one_notation(address: str) -> str:
    """Return an address as it is written usually; empty for what is none. A listener for both kinds maps IPv4 ones."""
    try:
        found = ip_address(address)
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


def own_path(request: Request, path: str) -> str:
    """Return a path of this application as a browser asks for it: it may be mounted below another one."""
    return f"{request.scope.get('root_path', '')}{path}"


def _page(request: Request) -> str:
    """Return the page to come back to: the present one; after a form, whose answer nobody can ask for, the first."""
    if request.method not in {"GET", "HEAD"}:
        return own_path(request, "/")
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def sign_in_at(request: Request, back: str = "") -> str:
    """Return the address of the sign-in, which leads on to ``back``, the present page by default."""
    sandbox = sandbox_of(request)
    url = sandbox.authenticator.login_url
    if sandbox.accounts is not None:
        url = own_path(request, url)
    return f"{url}{'&' if '?' in url else '?'}next={quote(back or _page(request))}"


def _cookies(header: str) -> dict[str, str]:
    """Return cookies by name. Two of ours that differ are none: a neighbour on this host may have set one of them."""
    found: dict[str, str] = {}
    for part in header.split(";"):
        name, _, value = part.strip().partition("=")
        if name in _SESSION_COOKIES and found.get(name, value) != value:
            value = ""
        found[name] = value
    return found
