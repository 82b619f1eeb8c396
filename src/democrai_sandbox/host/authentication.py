"""Authentication and roles: the interface between the host and the embedding application."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Visit:
    """Facts about an HTTP request before authentication."""

    headers: Mapping[str, str]
    """By lower-case name."""
    cookies: Mapping[str, str]
    address: str
    """Address of the client; behind a trusted proxy, the address from the proxy."""
    path: str


class Identity(NamedTuple):
    """Authenticated user."""

    user_id: str
    session_key: str
    """Session key for approvals. Not a secret: it is displayed and stored with requests."""
    scopes: frozenset[str] | None = None
    """Scopes of an API token, from ``host.scopes``; None for a user, whose role decides."""


class Roles(NamedTuple):
    """Roles of a user, for ``Caller``."""

    name: str
    """Display name."""
    role: str = ""
    """``super`` may decide, unless the user belongs to an organization."""
    access_level: str = ""
    organization_id: str = ""


class Authenticator(Protocol):
    """Authentication of HTTP requests. An application can replace ``host.accounts`` with it."""

    def identify(self, visit: Visit) -> Identity | None:
        """Return the user, or None without one. Called for every HTTP request on a thread, so it may block."""
        ...

    @property
    def login_url(self) -> str:
        """URL for signing in."""
        ...


class RoleLookup(Protocol):
    """Lookup of the current roles of a user, for every HTTP request and before a resume action runs."""

    def roles(self, user_id: str) -> Roles | None:
        """Return the roles; None for a user who does not exist or is disabled."""
        ...
