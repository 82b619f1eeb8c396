"""Accounts of the sandbox: users who sign in with a password, and their API tokens."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from democrai_sandbox.host.interface import Identity

from . import people, remembered, throttle
from .machines import Machines, bearer_of
from .roster import Roster
from .secrecy import hashed

if TYPE_CHECKING:
    from democrai_sandbox.host.interface import Roles, Visit

_TIDY_EVERY = timedelta(seconds=10)


class Accounts(Roster, Machines):
    """Authenticator and role lookup. Safe for use by several threads and nodes."""

    login_url = "/login"
    _tidied = 0.0

    def identify(self, visit: Visit) -> Identity | None:
        """Return the sender of an HTTP request, from the token in the header, otherwise from the cookie."""
        bearer = bearer_of(visit.headers.get("authorization", ""))
        if bearer is not None:
            return self._by_token(bearer)
        cookie = visit.cookies.get(self.cookie_name, "")
        return self._by_cookie(cookie, visit) if cookie else None

    def roles(self, user_id: str) -> Roles | None:
        """Return the current roles of a user; None for a user who does not exist or is disabled."""
        person = self._database.ask(partial(people.find_or_none, person_id=user_id))
        return None if person is None or person.disabled_at is not None else person.roles

    def recall(self, visit: Visit) -> tuple[Identity, Roles] | None:
        """Return the administrator who sends an HTTP request, from memory; None for other senders.

        Used while the database is down. Never blocks.
        """
        known = self._remembered
        bearer = bearer_of(visit.headers.get("authorization", ""))
        if bearer is not None:
            identity = self._of_token(known.tokens.get(hashed(bearer)))
        else:
            session = known.sessions.get(hashed(visit.cookies.get(self.cookie_name, "")))
            is_over = session is None or self._is_over(session)
            identity = None if session is None or is_over else Identity(session.person_id, session.id)
        return None if identity is None else known.with_roles(identity)

    def tidy(self) -> None:
        """End expired sessions and tokens with their approvals, and remove old failures. Call it periodically."""
        if monotonic() - self._tidied < _TIDY_EVERY.total_seconds():
            return
        self._tidied = monotonic()
        self._remembered = self._database.read(remembered.read)
        self._end_late_sessions()
        self._end_late_tokens()
        self._database.act(partial(throttle.forget, now=self._clock()))
