"""Sessions without passwords, whose comparison is slow by design."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import insert

from democrai_sandbox.access.values import new_id
from democrai_sandbox.host.accounts import store
from democrai_sandbox.host.accounts.passwords import hashed, new_session_secret
from democrai_sandbox.host.accounts.tables import sessions as table


def enter(accounts, person_id, *, confirmed=timedelta(0), agent="tests"):
    """Start a session; return its cookie and id. ``confirmed`` is the age of the password."""
    return enter_often(accounts, person_id, 1, confirmed=confirmed, agent=agent)[0]


def enter_often(accounts, person_id, times, *, confirmed=timedelta(0), agent="tests"):
    """Start many sessions at once."""
    now = datetime.now(UTC)
    rows, found = [], []
    for _ in range(times):
        secret = new_session_secret()
        session = store.new_session(new_id(), person_id, "127.0.0.1", agent, now)
        row = {name: getattr(session, name) for name in table.c.keys() if name != "token_hash"}  # noqa: SIM118
        rows.append({**row, "token_hash": hashed(secret), "confirmed_at": now - confirmed})
        found.append(({accounts.cookie_name: secret}, session.id))
    accounts._database.act(partial(_insert, rows=rows))
    return found


def _insert(connection, rows):
    connection.execute(insert(table), rows)
