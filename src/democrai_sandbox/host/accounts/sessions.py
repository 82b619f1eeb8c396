"""Rows of sessions: the user, the address and the times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, or_, select, update

from democrai_sandbox.access.store.journal import Entry, Ledger
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import AccountUnknown, SignInRefused

from . import throttle
from .people import kept_password, to_person
from .tables import people, sessions
from .values import PersonSession

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from sqlalchemy import Row

    from .throttle import Attempt
    from .values import Person

_LONGEST_AGENT = 300
_LONGEST_ADDRESS = 100

# Built once, because every HTTP request uses it.
_FOUND = select(sessions, people.c.disabled_at).join(people, people.c.id == sessions.c.person_id)


def new_session(session_id: str, person_id: str, address: str, agent: str, now: datetime) -> PersonSession:
    """Return a new session; shorten an overlong user agent."""
    return PersonSession(session_id, person_id, address[:_LONGEST_ADDRESS], agent[:_LONGEST_AGENT], now, now, now)


def open_session(connection: Connection, session: PersonSession, token_hash: str, kept: str, tried: Attempt) -> Person:
    """Sign in a user after the password check; refuse it if the password has changed since."""
    ledger = Ledger(connection)
    if kept_password(connection, session.person_id) != kept:
        raise SignInRefused
    now = session.created_at
    throttle.settle(connection, tried, now)
    connection.execute(insert(sessions), {**_columns(session), "token_hash": token_hash})
    after = {"person": session.person_id, "address": session.address, "session": session.id}
    if tried.failures > 1:
        after["failed_before"] = str(tried.failures - 1)
    ledger.close([Entry(AuditAction.ACCOUNT_SIGNED_IN, session.person_id, after=after)], now=now)
    row = connection.execute(select(people).where(people.c.id == session.person_id)).one()
    return to_person(row)


def find_by_hash(connection: Connection, token_hash: str) -> PersonSession | None:
    """Return the session of a cookie, unless its user is disabled."""
    row = connection.execute(_FOUND.where(sessions.c.token_hash == token_hash)).one_or_none()
    return None if row is None or row.disabled_at is not None else _to_session(row)


def find(connection: Connection, session_id: str) -> PersonSession:
    """Return a session; raise ``AccountUnknown``."""
    row = connection.execute(select(sessions).where(sessions.c.id == session_id)).one_or_none()
    if row is None:
        raise AccountUnknown("this session does not exist")
    return _to_session(row)


def by_hash(connection: Connection, owners: Iterable[str]) -> dict[str, PersonSession]:
    """Return the sessions of these users, by the hash of their cookie."""
    rows = connection.execute(select(sessions).where(sessions.c.person_id.in_(list(owners))))
    return {row.token_hash: _to_session(row) for row in rows}


def listed(connection: Connection, person_id: str) -> tuple[PersonSession, ...]:
    """Return a user's sessions, newest first."""
    query = select(sessions).where(sessions.c.person_id == person_id)
    newest = query.order_by(sessions.c.created_at.desc(), sessions.c.id.desc())
    return tuple(map(_to_session, connection.execute(newest)))


def over(connection: Connection, *, idle_since: datetime, created_before: datetime) -> tuple[PersonSession, ...]:
    """Return the expired sessions."""
    late = or_(sessions.c.last_seen <= idle_since, sessions.c.created_at <= created_before)
    return tuple(map(_to_session, connection.execute(select(sessions).where(late).limit(1000))))


def touch(connection: Connection, session_id: str, now: datetime) -> None:
    """Record that a session was used."""
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(last_seen=now))


def confirm(connection: Connection, session_id: str, now: datetime) -> None:
    """Record that the password was entered again."""
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(confirmed_at=now))


def close(connection: Connection, ended: Iterable[PersonSession], *, actor: str, why: str, now: datetime) -> None:
    """Delete sessions and audit it; skip those that were already deleted."""
    ledger = Ledger(connection)
    entries = [
        Entry(
            AuditAction.ACCOUNT_SIGNED_OUT,
            actor,
            after={"person": session.person_id, "session": session.id, "why": why},
        )
        for session in ended
        if connection.execute(delete(sessions).where(sessions.c.id == session.id)).rowcount == 1
    ]
    ledger.close(entries, now=now)


def _columns(session: PersonSession) -> dict[str, Any]:
    return {name: getattr(session, name) for name in sessions.c.keys() if name != "token_hash"}  # noqa: SIM118 - no mapping


def _to_session(row: Row[Any]) -> PersonSession:
    return PersonSession(
        row.id, row.person_id, row.address, row.user_agent, row.created_at, row.last_seen, row.confirmed_at
    )
