"""Tables used by this version of the code; users, sessions and tokens as immutable values without visible secrets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Column, ForeignKey, Index, Integer, MetaData, Table, Text

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.store.tables import AnyText, Moment, columns
from democrai_sandbox.host.authentication import Roles

if TYPE_CHECKING:
    from datetime import datetime

    from democrai_sandbox.host.scopes import Scope

metadata = MetaData()
"""Metadata of the tables. Migrations create them; a test compares both."""

people = Table(
    "host_people",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("password", Text, nullable=False),
    *columns(AnyText, "role", "access_level", "organization_id"),
    *columns(Moment, "created_at", "password_at"),
    Column("disabled_at", Moment),
    sqlite_strict=True,
)

sessions = Table(
    "host_sessions",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("person_id", AnyText, ForeignKey("host_people.id"), nullable=False),
    *columns(AnyText, "address", "user_agent"),
    *columns(Moment, "created_at", "last_seen", "confirmed_at"),
    Index("ix_host_sessions_person", "person_id", "created_at"),
    sqlite_strict=True,
)

tokens = Table(
    "host_tokens",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("secret_hash", Text, nullable=False, unique=True),
    Column("person_id", AnyText, ForeignKey("host_people.id"), nullable=False),
    Column("label", AnyText, nullable=False),
    Column("scopes", Text, nullable=False),
    Column("created_at", Moment, nullable=False),
    *columns(Moment, "expires_at", "last_used", "ended_at", nullable=True),
    Index("ix_host_tokens_person", "person_id", "created_at"),
    sqlite_strict=True,
)

throttle = Table(
    "host_throttle",
    metadata,
    # A hash, so that neither addresses nor mistyped names, which may be passwords, are stored here.
    Column("key", Text, primary_key=True),
    Column("failures", Integer, nullable=False),
    *columns(Moment, "last_at", "forget_at"),
    Index("ix_host_throttle_forget", "forget_at"),
    sqlite_strict=True,
)

idempotency = Table(
    "host_idempotency",
    metadata,
    # Hash of the caller and the key.
    Column("id", Text, primary_key=True),
    Column("caller", AnyText, nullable=False),
    Column("digest", Text, nullable=False),
    # None while the HTTP request runs; empty for an answer that is too large to be stored.
    Column("answer", AnyText),
    Column("begun_at", Moment, nullable=False),
    Index("ix_host_idempotency_caller", "caller", "begun_at"),
    Index("ix_host_idempotency_begun", "begun_at"),
    sqlite_strict=True,
)


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
