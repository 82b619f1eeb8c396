"""What the host asks of the application that it is part of: who is there, and what that person is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Visit:
    """What is known of whoever sends a request, before anybody has said who that is."""

    headers: Mapping[str, str]
    """By lower-case name."""
    cookies: Mapping[str, str]
    address: str
    """Of the client; behind a trusted proxy, the one that the proxy names."""
    path: str


class Identity(NamedTuple):
    """Who an authenticator found."""

    user_id: str
    session_key: str
    """Names the session that approvals hold for. No secret: it is shown, and kept with requests."""
    scopes: frozenset[str] | None = None
    """What a machine's token may do, from ``host.scopes``; None for a person, who may what the role allows."""


class Roles(NamedTuple):
    """What a person is, for ``Caller``."""

    name: str
    """For people to read."""
    role: str = ""
    """``super`` may decide, unless scoped to an organization."""
    access_level: str = ""
    organization_id: str = ""


class Authenticator(Protocol):
    """Says who sends a request. An application puts its own in the place of ``host.accounts``."""

    def identify(self, visit: Visit) -> Identity | None:
        """Return who it is, None for nobody. Called for every request, on a thread: it may look things up."""
        ...

    @property
    def login_url(self) -> str:
        """Where a person is sent who is nobody yet."""
        ...


class RoleLookup(Protocol):
    """Says what a person is now: asked for every request, and when something goes on that waited for an approval."""

    def roles(self, user_id: str) -> Roles | None:
        """Return what they are; None for somebody who is not there any more, or shut out."""
        ...
