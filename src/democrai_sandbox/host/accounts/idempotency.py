"""Idempotency keys, in the database: a request that is sent again gets the first answer, whichever node is asked.

A key belongs to one caller. It is taken when a request begins and gets the answer when that is there; a request that
fails lets it go. If a node dies in between, the key is free again after a minute.
"""

from __future__ import annotations

from datetime import timedelta
from hashlib import sha256
from time import monotonic
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, func, insert, select, update

from democrai_sandbox.access.node import utc_now
from democrai_sandbox.errors import IdempotencyConflict, IdempotencyRunning

from .tables import idempotency

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from democrai_sandbox.access.store.transactions import Database

LIFETIME = timedelta(hours=24)
"""How long an answer is kept."""
LEASE = timedelta(minutes=1)
"""How long a request may run before its node is taken for dead."""
MOST_KEYS = 1000
"""Of one caller; the oldest go first."""
LARGEST_ANSWER = 1024 * 1024
"""Characters of an answer that is kept."""
_TIDY_EVERY = timedelta(minutes=10)
_TOO_LARGE = ""


class IdempotencyKeys:
    """The keys of all callers. Safe to use from many threads and nodes."""

    def __init__(self, database: Database, *, clock: Callable[[], datetime] = utc_now) -> None:
        """Keep them in this database."""
        self._database = database
        self._clock = clock
        self._tidied = monotonic()

    def begin(self, caller: str, key: str, digest: str) -> str | None:
        """Take a key for a request; return the answer that it had before, None for a request that is new.

        ``digest`` stands for the request. Raises ``IdempotencyConflict`` if the key was used for another one, and
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
                raise IdempotencyConflict("the request was carried out, and its answer was too large to be kept")
            if row.answer is None and row.begun_at > now - LEASE:
                raise IdempotencyRunning("the first request with this key has no answer yet")
            if row.answer is None:
                connection.execute(update(idempotency).where(here).values(begun_at=now))
            found: str | None = row.answer
            return found

        return self._database.act(work)

    def finish(self, caller: str, key: str, answer: str) -> None:
        """Keep the answer of a request."""
        kept = answer if len(answer) <= LARGEST_ANSWER else _TOO_LARGE
        here = idempotency.c.id == _id(caller, key)
        self._database.act(lambda connection: connection.execute(update(idempotency).where(here).values(answer=kept)))

    def abandon(self, caller: str, key: str) -> None:
        """Let the key of a request go that failed."""
        here = idempotency.c.id == _id(caller, key)
        self._database.act(lambda connection: connection.execute(delete(idempotency).where(here)))

    def count(self, caller: str) -> int:
        """Return how many keys of a caller are kept."""
        counted = select(func.count()).select_from(idempotency).where(idempotency.c.caller == caller)
        return int(self._database.ask(lambda connection: connection.execute(counted).scalar_one()))

    def tidy(self) -> None:
        """Forget what is too old."""
        late = self._clock() - LIFETIME
        forgotten = delete(idempotency).where(idempotency.c.begun_at <= late)
        self._database.act(lambda connection: connection.execute(forgotten))

    def tidy_sometimes(self) -> None:
        """Do that, if it has not been done for some minutes."""
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
    """Return by what a key is found. A hash: neither part can be taken for the end of the other."""
    return sha256(f"{len(caller)}:{caller}:{key}".encode("utf-8", "surrogatepass")).hexdigest()
