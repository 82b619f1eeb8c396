"""Sessions that have ended: a task may outlive its session, and nobody would end what is approved for it then."""

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
"""Bytes of a user's id or a session key: both are parts of an index, and PostgreSQL has a limit there."""

# Made once: every request of a session asks.
_ENDED = select(ended_sessions.c.ended_at).where(
    ended_sessions.c.session_key == bindparam("its_session", type_=AnyText())
)


def check_identity(name: str, value: str) -> None:
    """Refuse a user's id or a session key that is too long to be looked for."""
    if len(value.encode("utf-8", "surrogatepass")) > LONGEST_IDENTITY:
        raise InvalidInputError.of(f"it is longer than {LONGEST_IDENTITY} bytes", pointer=f"/{name}")


def has_ended(connection: Connection, session_key: str) -> bool:
    """Tell whether a session has ended. Exact under the ledger, which whoever ends one holds."""
    return bool(session_key) and connection.execute(_ENDED, {"its_session": session_key}).first() is not None


def remember_end(connection: Connection, session_key: str, *, now: datetime) -> bool:
    """Remember that a session has ended, under the ledger; False when it had before."""
    if has_ended(connection, session_key):
        return False
    connection.execute(insert(ended_sessions).values(session_key=session_key, ended_at=now))
    return True
