"""Idempotency keys of API requests, for all nodes."""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select, update

from democrai_sandbox.access.node import utc_now
from democrai_sandbox.errors import IdempotencyConflict, IdempotencyRunning

from .tables import idempotency

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from democrai_sandbox.access.store.database import Database

LIFETIME = timedelta(hours=24)
"""Time for which an answer is stored."""
LEASE = timedelta(minutes=1)
"""Maximum time of an HTTP request, after which its node counts as dead."""
MOST_KEYS = 1000
"""Keys per caller; the oldest are removed first."""
LARGEST_ANSWER = 1024 * 1024
"""Maximum characters of a stored answer."""
_TIDY_EVERY = timedelta(minutes=10)
_TOO_LARGE = ""


class IdempotencyKeys:
    """Idempotency keys: a repeated HTTP request gets the first answer, on any node. Safe for use by several threads.

    A key belongs to one caller. It is reserved when an HTTP request begins, stores the answer, and is released if the
    request fails. If a node ends in between, the key is free again after a minute.
    """

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        self._database = database
        self._clock = clock
        self._tidied = monotonic()

    def begin(self, caller: str, key: str, digest: str) -> str | None:
        """Reserve a key for an HTTP request; return its stored answer, or None for a new one.

        ``digest`` identifies the content. Raise ``IdempotencyConflict`` if the key was used with other content, and
        ``IdempotencyRunning`` while the first one has no answer yet.
        """
        now = self._clock()

        def work(connection: Connection) -> str | None:
            connection.execute(delete(idempotency).where(idempotency.c.begun_at <= now - LIFETIME))
            here = idempotency.c.id == _id(caller, key)
            row = connection.execute(select(idempotency).where(here).with_for_update()).one_or_none()
            if row is None:
                _make_room(connection, caller)
                columns = {"id": _id(caller, key), "caller": caller, "digest": digest, "begun_at": now}
                connection.execute(insert(idempotency), columns)
                return None
            if row.digest != digest:
                raise IdempotencyConflict("the key was used for another request: send a new key")
            if row.answer == _TOO_LARGE:
                raise IdempotencyConflict("the request succeeded, but its answer was too large to be stored")
            if row.answer is None and row.begun_at > now - LEASE:
                raise IdempotencyRunning("the first request with this key has no answer yet")
            if row.answer is None:
                connection.execute(update(idempotency).where(here).values(begun_at=now))
            found: str | None = row.answer
            return found

        return self._database.act(work)

    def finish(self, caller: str, key: str, answer: str) -> None:
        """Store the answer of an HTTP request."""
        kept = answer if len(answer) <= LARGEST_ANSWER else _TOO_LARGE
        here = idempotency.c.id == _id(caller, key)
        self._database.act(lambda connection: connection.execute(update(idempotency).where(here).values(answer=kept)))

    def abandon(self, caller: str, key: str) -> None:
        """Release the key of a failed HTTP request."""
        here = idempotency.c.id == _id(caller, key)
        self._database.act(lambda connection: connection.execute(delete(idempotency).where(here)))

    def tidy(self) -> None:
        """Remove expired keys."""
        late = self._clock() - LIFETIME
        forgotten = delete(idempotency).where(idempotency.c.begun_at <= late)
        self._database.act(lambda connection: connection.execute(forgotten))

    def tidy_sometimes(self) -> None:
        """Remove expired keys, at most once in some minutes."""
        if monotonic() - self._tidied >= _TIDY_EVERY.total_seconds():
            self._tidied = monotonic()
            self.tidy()


def _make_room(connection: Connection, caller: str) -> None:
    own = idempotency.c.caller == caller
    newest = select(idempotency.c.id).where(own).order_by(idempotency.c.begun_at.desc(), idempotency.c.id)
    old = connection.execute(newest.offset(MOST_KEYS - 1)).scalars().all()
    if old:
        connection.execute(delete(idempotency).where(idempotency.c.id.in_(old)))


def _id(caller: str, key: str) -> str:
    """Return the id of a key: a hash that includes the length, so that caller and key cannot be confused."""
    return sha256(f"{len(caller)}:{caller}:{key}".encode("utf-8", "surrogatepass")).hexdigest()
