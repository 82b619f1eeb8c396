"""Accounts: people of the host itself, who sign in with a password, and their machines, which come with tokens."""

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
    """Is authenticator and role lookup in one. Safe to use from many threads, and on several nodes at once."""

    login_url = "/login"
    _tidied = 0.0

    def identify(self, visit: Visit) -> Identity | None:
        """Return who sends a request: by the token in the header, if there is one, and otherwise by the cookie."""
        bearer = bearer_of(visit.headers.get("authorization", ""))
        if bearer is not None:
            return self._by_token(bearer)
        cookie = visit.cookies.get(self.cookie_name, "")
        return self._by_cookie(cookie, visit) if cookie else None

    def roles(self, user_id: str) -> Roles | None:
        """Return what a person is now; None for somebody who is not there, or shut out."""
        person = self._database.ask(partial(people.find_or_none, person_id=user_id))
        return None if person is None or person.disabled_at is not None else person.roles

    def recall(self, visit: Visit) -> tuple[Identity, Roles] | None:
        """Return the administrator who sends a request, by what is in memory; None for everybody else.

        For what is told while the database is away. Never waits.
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
        """End what is over, with what was approved for it, and forget old failures. To be called now and then."""
        if monotonic() - self._tidied < _TIDY_EVERY.total_seconds():
            return
        self._tidied = monotonic()
        self._remembered = self._database.read(remembered.read)
        self._end_late_sessions()
        self._end_late_tokens()
        self._database.act(partial(throttle.forget, now=self._clock()))
