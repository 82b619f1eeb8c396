"""Tables used by this version of the code. Migrations create them; a test compares both."""

from __future__ import annotations

from sqlalchemy import Column, ForeignKey, Index, Integer, MetaData, Table, Text

from democrai_sandbox.access.store.tables import AnyText, Moment

metadata = MetaData()

people = Table(
    "host_people",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("password", Text, nullable=False),
    Column("role", AnyText, nullable=False),
    Column("access_level", AnyText, nullable=False),
    Column("organization_id", AnyText, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("password_at", Moment, nullable=False),
    Column("disabled_at", Moment),
    sqlite_strict=True,
)

sessions = Table(
    "host_sessions",
    metadata,
    Column("id", AnyText, primary_key=True),
    Column("token_hash", Text, nullable=False, unique=True),
    Column("person_id", AnyText, ForeignKey("host_people.id"), nullable=False),
    Column("address", AnyText, nullable=False),
    Column("user_agent", AnyText, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("last_seen", Moment, nullable=False),
    Column("confirmed_at", Moment, nullable=False),
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
    Column("expires_at", Moment),
    Column("last_used", Moment),
    Column("ended_at", Moment),
    Index("ix_host_tokens_person", "person_id", "created_at"),
    sqlite_strict=True,
)

throttle = Table(
    "host_throttle",
    metadata,
    # A hash, so that neither addresses nor mistyped names, which may be passwords, are stored here.
    Column("key", Text, primary_key=True),
    Column("failures", Integer, nullable=False),
    Column("last_at", Moment, nullable=False),
    Column("forget_at", Moment, nullable=False),
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
