"""People, sessions and tokens as they are handed out. Frozen; what carries a secret does not show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.host.interface import Roles

if TYPE_CHECKING:
    from datetime import datetime

    from democrai_sandbox.host.scopes import Scope


@dataclass(frozen=True, slots=True)
class Person:
    """Somebody who can sign in. The id is the name: it never changes, and is not given to somebody else."""

    id: str
    role: str
    access_level: str
    organization_id: str
    created_at: datetime
    password_at: datetime
    disabled_at: datetime | None

    @property
    def name(self) -> str:
        """For people to read."""
        return self.id

    @property
    def may_decide(self) -> bool:
        """Whether this person is an administrator, who may approve and deny; somebody shut out is none."""
        caller = Caller(self.id, self.organization_id, "", self.role, self.access_level)
        return caller.may_decide and self.disabled_at is None

    @property
    def roles(self) -> Roles:
        """What this person is, for a caller."""
        return Roles(self.id, self.role, self.access_level, self.organization_id)


@dataclass(frozen=True, slots=True)
class PersonSession:
    """A sign-in that holds: from where, with what, and until when at most."""

    id: str
    """Public. Approvals for a session are about it."""
    person_id: str
    address: str
    user_agent: str
    """What the browser says it is: any text."""
    created_at: datetime
    last_seen: datetime
    confirmed_at: datetime
    """When the password was given last."""


@dataclass(frozen=True, slots=True)
class Token:
    """A machine's way in, without its secret."""

    id: str
    """Public. Approvals for a session are about it."""
    person_id: str
    label: str
    scopes: frozenset[Scope]
    created_at: datetime
    expires_at: datetime | None
    last_used: datetime | None
    ended_at: datetime | None
    """When it was revoked."""


@dataclass(frozen=True, slots=True)
class SignedIn:
    """What a sign-in gives."""

    user: Person
    session: PersonSession
    token: str = field(repr=False)
    """For the cookie. Only its hash is kept."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What somebody signs in with, shown once."""

    name: str
    password: str = field(repr=False)
