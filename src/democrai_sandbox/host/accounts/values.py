"""Users, sessions and tokens as immutable values, which do not show secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.host.authentication import Roles

if TYPE_CHECKING:
    from datetime import datetime

    from democrai_sandbox.host.scopes import Scope


@dataclass(frozen=True, slots=True)
class Person:
    """User who can sign in. The id is the name, which never changes and is never reused."""

    id: str
    role: str
    access_level: str
    organization_id: str
    created_at: datetime
    password_at: datetime
    disabled_at: datetime | None

    @property
    def name(self) -> str:
        """Display name."""
        return self.id

    @property
    def may_decide(self) -> bool:
        """Whether this user is an administrator, who may approve and deny; False for a disabled user."""
        caller = Caller(self.id, self.organization_id, "", self.role, self.access_level)
        return caller.may_decide and self.disabled_at is None

    @property
    def roles(self) -> Roles:
        """Roles of this user, for a caller."""
        return Roles(self.id, self.role, self.access_level, self.organization_id)


@dataclass(frozen=True, slots=True)
class PersonSession:
    """Session of a signed-in user: address, browser and times."""

    id: str
    """Public. Session approvals refer to it."""
    person_id: str
    address: str
    user_agent: str
    """User agent of the browser: any text."""
    created_at: datetime
    last_seen: datetime
    confirmed_at: datetime
    """Time of the last password entry."""


@dataclass(frozen=True, slots=True)
class Token:
    """API token without its secret."""

    id: str
    """Public. Session approvals refer to it."""
    person_id: str
    label: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    last_used: datetime | None
    ended_at: datetime | None
    """Time of the revocation."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Result of a sign-in."""

    user: Person
    session: PersonSession
    token: str = field(repr=False)
    """Secret for the cookie. Only its hash is stored."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Name and password, shown once."""

    name: str
    password: str = field(repr=False)
