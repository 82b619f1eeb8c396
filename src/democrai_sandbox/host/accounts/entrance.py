"""Sign-in, sign-out and sessions."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from democrai_sandbox.access.ids import new_id
from democrai_sandbox.access.store.journal import SYSTEM
from democrai_sandbox.errors import AccountUnknown, StoreUnavailable
from democrai_sandbox.host.interface import Identity

from . import sessions
from .desk import Desk
from .secrecy import hashed, new_session_secret
from .values import SignedIn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from democrai_sandbox.host.interface import Visit

    from .values import PersonSession

MOST_SESSIONS = 50
"""Sessions per user; beyond that, the oldest ends."""
_SEEN_EVERY = timedelta(minutes=1)


class Entrance(Desk):
    """Sessions of users, stored in the database, so that they can be listed and ended from elsewhere."""

    def sign_in(self, name: str, password: str, visit: Visit) -> SignedIn:
        """Start a session; raise ``SignInRefused`` or ``SignInThrottled``."""
        tried, kept = self._door.compare(name, password, visit.address)
        secret = new_session_secret()
        agent = visit.headers.get("user-agent", "")
        session = sessions.new_session(new_id(), tried.name, visit.address, agent, self._clock())
        person = self._database.act(
            partial(sessions.open_session, session=session, token_hash=hashed(secret), kept=kept, tried=tried)
        )
        self._end(self.sessions_of(person.id)[MOST_SESSIONS:], actor=SYSTEM, why="session limit reached")
        return SignedIn(person, session, secret)

    def sign_out(self, session_id: str) -> None:
        """End the caller's session; raise ``AccountUnknown``."""
        session = self._session(session_id)
        self._end([session], actor=session.person_id, why="signed out")

    def sessions_of(self, user_id: str) -> tuple[PersonSession, ...]:
        """Return the active sessions, newest first."""
        found = self._database.ask(partial(sessions.listed, person_id=user_id))
        return tuple(session for session in found if not self._is_over(session))

    def end_session(self, session_id: str, actor: str, *, owner: str = "") -> None:
        """End a session; with ``owner``, only a session of that user. Raise ``AccountUnknown``."""
        session = self._session(session_id)
        if owner and session.person_id != owner:
            raise AccountUnknown("this session does not exist")
        self._end([session], actor=actor, why="ended")

    def end_all(self, user_id: str, except_session: str = "", *, actor: str = "") -> int:
        """End all sessions of a user except one; return their number."""
        found = self._database.ask(partial(sessions.listed, person_id=user_id))
        ended = [session for session in found if session.id != except_session]
        self._end(ended, actor=actor or user_id, why="ended with all others" if except_session else "ended everywhere")
        return len(ended)

    def confirm_password(self, session_id: str, password: str) -> None:
        """Check the password again for a session; raise ``SignInRefused`` or ``SignInThrottled``."""
        self._compare_again(self._session(session_id), password)
        self._database.act(partial(sessions.confirm, session_id=session_id, now=self._clock()))

    def is_confirmed(self, session_id: str, within: timedelta) -> bool:
        """Return whether the password was entered recently; False for an unknown session."""
        try:
            session = self._session(session_id)
        except AccountUnknown:
            return False
        return self._clock() - session.confirmed_at <= within

    def _by_cookie(self, cookie: str, visit: Visit) -> Identity | None:
        session = self._database.ask(partial(sessions.find_by_hash, token_hash=hashed(cookie)))
        if session is None or self._is_over(session):
            return None
        now = self._clock()
        if _is_use(visit) and now - session.last_seen >= min(_SEEN_EVERY, self._idle / 4):
            with suppress(StoreUnavailable):  # for example a full disk, which is still readable
                self._database.act(partial(sessions.touch, session_id=session.id, now=now))
        return Identity(session.person_id, session.id)

    def _compare_again(self, session: PersonSession, password: str) -> None:
        """Compare the password of a signed-in user; count failures, which may come from an unattended session."""
        tried, _ = self._door.compare(session.person_id, password, f"session {session.id}")
        self._door.settle(tried)

    def _end_late_sessions(self) -> None:
        now = self._clock()
        late = partial(sessions.over, idle_since=now - self._idle, created_before=now - self._longest)
        self._end(self._database.ask(late), actor=SYSTEM, why="idle for too long, or expired")

    def _end(self, ended: Sequence[PersonSession], *, actor: str, why: str) -> None:
        """End the approvals of sessions, then the sessions, so that a failure of the first can be retried."""
        if not ended:
            return
        for session in ended:
            self._end_approvals(session.id)
        self._database.act(partial(sessions.close, ended=ended, actor=actor, why=why, now=self._clock()))

    def _session(self, session_id: str) -> PersonSession:
        return self._database.ask(partial(sessions.find, session_id=session_id))

    def _is_over(self, session: PersonSession) -> bool:
        now = self._clock()
        return now - session.last_seen >= self._idle or now - session.created_at >= self._longest

    @property
    def _idle(self) -> timedelta:
        return timedelta(minutes=self._settings.console.idle_minutes)

    @property
    def _longest(self) -> timedelta:
        return timedelta(hours=self._settings.console.session_hours)


def _is_use(visit: Visit) -> bool:
    """Return whether a user caused the HTTP request. An open page polls for updates automatically."""
    return "x-live" not in visit.headers and "text/event-stream" not in visit.headers.get("accept", "")
