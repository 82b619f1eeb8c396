"""Ended sessions: a task may outlive its session, and an approval for it would then never end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import bindparam, insert, select

from democrai_sandbox.policy import InvalidInputError

from .columns import AnyText
from .tables import ended_sessions

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Connection

LONGEST_IDENTITY = 1000
"""Maximum size in bytes of a user id or session key, because PostgreSQL limits index entries."""

# Built once, because every request with a session uses it.
_ENDED = select(ended_sessions.c.ended_at).where(
    ended_sessions.c.session_key == bindparam("its_session", type_=AnyText())
)


def check_identity(name: str, value: str) -> None:
    """Reject a user id or session key that is too long for an index."""
    if len(value.encode("utf-8", "surrogatepass")) > LONGEST_IDENTITY:
        raise InvalidInputError.of(f"expected at most {LONGEST_IDENTITY} bytes", pointer=f"/{name}")


def has_ended(connection: Connection, session_key: str) -> bool:
    """Return whether a session has ended. Exact while holding the ledger, under which sessions end."""
    return bool(session_key) and connection.execute(_ENDED, {"its_session": session_key}).first() is not None


def remember_end(connection: Connection, session_key: str, *, now: datetime) -> bool:
    """Store under the ledger that a session has ended; return False if it had ended before."""
    if has_ended(connection, session_key):
        return False
    connection.execute(insert(ended_sessions).values(session_key=session_key, ended_at=now))
    return True
