"""Accounts of the sandbox: users who sign in with a password, their sessions and their API tokens."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from time import monotonic
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, or_, select

from democrai_sandbox.access.caller import SUPER
from democrai_sandbox.access.node import utc_now
from democrai_sandbox.access.store.audit_log import SYSTEM
from democrai_sandbox.access.store.tables import from_row
from democrai_sandbox.access.values import new_id
from democrai_sandbox.errors import AccountUnknown, StoreUnavailable
from democrai_sandbox.host.authentication import Identity
from democrai_sandbox.host.host_only import inside
from democrai_sandbox.policy import InvalidInputError

from . import passwords, store
from .tables import Credentials, Person, SignedIn, Token, people

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from democrai_sandbox.access.store.database import Database
    from democrai_sandbox.host.authentication import Roles, Visit
    from democrai_sandbox.host.settings import HostSettings

    from .tables import PersonSession


class AdministratorCache(NamedTuple):
    """Tokens and sessions at the last read of the database, by the hash of their secret.

    For outages of the database, hashes and public values of administrators are kept in memory. They are read again
    every few seconds while the database is reachable, so a revocation before an outage holds, and open only status and
    metrics.
    """

    roles: Mapping[str, Roles] = MappingProxyType({})
    """Roles of administrators, by id."""
    tokens: Mapping[str, Token] = MappingProxyType({})
    sessions: Mapping[str, PersonSession] = MappingProxyType({})


def read_administrators(connection: Connection) -> AdministratorCache:
    """Read the tokens and sessions of administrators."""
    is_super = or_(people.c.role == SUPER, people.c.access_level == SUPER)
    rows = connection.execute(select(people).where(is_super, people.c.disabled_at.is_(None)))
    found = (from_row(Person, row) for row in rows)
    roles = {person.id: person.roles for person in found if person.may_decide}
    return AdministratorCache(roles, store.tokens_by_hash(connection, roles), store.sessions_by_hash(connection, roles))


SECURE_COOKIE = "__Host-democrai"
"""Browsers accept this prefix over TLS only, for one host and all its paths, so no other host can set the cookie."""
PLAIN_COOKIE = "democrai_session"
"""For loopback without TLS."""


def is_secure(settings: HostSettings) -> bool:
    """Return whether users connect over TLS."""
    return settings.server.public_url.startswith("https://")


MOST_SESSIONS = 50
"""Sessions per user; beyond that, the oldest ends."""
_SEEN_EVERY = timedelta(minutes=1)
FIRST = "admin"
_LONGEST_LIFETIME = timedelta(days=3650)
_KEPT_AFTER_END = timedelta(days=90)
_USED_EVERY = timedelta(minutes=1)
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)
_TIDY_EVERY = timedelta(seconds=10)


def _is_user_activity(visit: Visit) -> bool:
    """Return whether a user caused the HTTP request. An open page polls for updates automatically."""
    return "x-live" not in visit.headers and "text/event-stream" not in visit.headers.get("accept", "")


def bearer_of(authorization: str) -> str | None:
    """Return the token of a ``Bearer`` header; None for other headers."""
    found = _BEARER.fullmatch(authorization.strip())
    return found.group(1) if found else None


class Accounts:
    """Users, sessions and API tokens: an authenticator and role lookup, safe for several threads and nodes.

    Closed to guarded code, which cannot sign in users or create users and tokens. The callers of the functions that
    change users must check the permission of ``actor``.
    """

    login_url = "/login"
    _tidied = 0.0
    _database: Database = inside("accounts")
    _sign_in_check: passwords.SignInCheck = inside("accounts")
    _passwords: passwords.Passwords = inside("accounts")
    _idle: timedelta = inside("accounts")
    _longest: timedelta = inside("accounts")
    _administrators: AdministratorCache = inside("accounts")

    def __init__(
        self,
        database: Database,
        settings: HostSettings,
        *,
        on_session_end: Callable[[str], object] = lambda _: None,
        cost: passwords.Cost | None = None,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        """``on_session_end`` ends the approvals of a session or token; it is called before that ends."""
        self.cookie_name = SECURE_COOKIE if is_secure(settings) else PLAIN_COOKIE
        self._database = database
        self._idle = timedelta(minutes=settings.console.idle_minutes)
        self._longest = timedelta(hours=settings.console.session_hours)
        self._administrators = AdministratorCache()
        self._end_approvals = on_session_end
        self._clock = clock
        self._passwords = passwords.Passwords(cost or passwords.Cost())
        self._sign_in_check = passwords.SignInCheck(database, self._passwords, clock)

    def identify(self, visit: Visit) -> Identity | None:
        """Return the sender of an HTTP request, from the token in the header, otherwise from the cookie."""
        bearer = bearer_of(visit.headers.get("authorization", ""))
        if bearer is not None:
            return self._by_token(bearer)
        cookie = visit.cookies.get(self.cookie_name, "")
        return self._by_cookie(cookie, visit) if cookie else None

    def roles(self, user_id: str) -> Roles | None:
        """Return the current roles of a user; None for a user who does not exist or is disabled."""
        person = self._database.ask(partial(store.find_user_or_none, person_id=user_id))
        return None if person is None or person.disabled_at is not None else person.roles

    def recall(self, visit: Visit) -> tuple[Identity, Roles] | None:
        """Return the administrator who sends an HTTP request, from memory; None for other senders.

        Used while the database is down. Never blocks.
        """
        known = self._administrators
        bearer = bearer_of(visit.headers.get("authorization", ""))
        if bearer is not None:
            identity = self._of_token(known.tokens.get(passwords.hashed(bearer)))
        else:
            session = known.sessions.get(passwords.hashed(visit.cookies.get(self.cookie_name, "")))
            is_over = session is None or self._is_over(session)
            identity = None if session is None or is_over else Identity(session.person_id, session.id)
        roles = None if identity is None else known.roles.get(identity.user_id)
        return None if identity is None or roles is None else (identity, roles)

    def tidy(self) -> None:
        """End expired sessions and tokens with their approvals, and remove old failures. Call it periodically."""
        if monotonic() - self._tidied < _TIDY_EVERY.total_seconds():
            return
        self._tidied = monotonic()
        self._administrators = self._database.read(read_administrators)
        now = self._clock()
        late = partial(store.expired_sessions, idle_since=now - self._idle, created_before=now - self._longest)
        self._end(self._database.ask(late), actor=SYSTEM, why="idle for too long, or expired")
        for token in self._database.ask(partial(store.expired_tokens, now=now)):
            self._end_token(token, actor=SYSTEM, why="expired")
        self._database.act(partial(store.prune_tokens, before=now - _KEPT_AFTER_END))
        self._database.act(partial(store.forget_failures, now=now))

    # ---- users -------------------------------------------------------------------------------------------------------

    def first_administrator(self, tell: Callable[[Credentials], None] | None = None) -> Credentials | None:
        """Add an administrator if no user exists; the returned password is not stored, and shown once.

        With ``tell``, add no user whose password could not be shown: its exception propagates.
        """
        if self._database.ask(store.has_users):
            return None
        found = Credentials(FIRST, passwords.random_password())
        person = self._new_person(found.name, SUPER, "", "")
        kept = self._passwords.keep(found.password)

        def add(connection: Connection) -> bool:
            added = store.add_user(connection, person, kept, actor=SYSTEM, only_first=True) is not None
            if added and tell is not None:
                tell(found)
            return added

        return found if self._database.act(add) else None

    def create_person(
        self,
        name: str,
        password: str,
        *,
        role: str = "",
        access_level: str = "",
        organization_id: str = "",
        actor: str,
    ) -> Person:
        """Add a user; raise ``InvalidInputError``, or ``AccountConflict`` for an existing name."""
        person = self._new_person(name, role, access_level, organization_id)
        kept = self._passwords.keep(passwords.check_password(password, name))
        self._database.act(partial(store.add_user, person=person, kept=kept, actor=actor))
        return person

    def people(self) -> tuple[Person, ...]:
        """Return all users by name."""
        return self._database.ask(store.list_users)

    def person(self, user_id: str) -> Person:
        """Return a user; raise ``AccountUnknown``."""
        return self._database.ask(partial(store.find_user, person_id=user_id))

    def change_password(self, session_id: str, current: str, password: str) -> None:
        """Change the caller's password after checking the current one, and end all other sessions."""
        session = self._session(session_id)
        who = session.person_id
        passwords.check_password(password, who)
        self._compare_again(session, current)
        self._set_password(who, password, actor=who)
        self._database.act(partial(store.mark_session, session_id=session_id, confirmed_at=self._clock()))
        self.end_all(who, session_id)

    def reset_password(self, user_id: str, password: str = "", *, actor: str) -> str:
        """Set another password for a user, random by default, and end all their sessions; return it."""
        self.person(user_id)
        chosen = passwords.check_password(password, user_id) if password else passwords.random_password()
        self._set_password(user_id, chosen, actor=actor)
        self.end_all(user_id, actor=actor)
        return chosen

    def disable(self, user_id: str, *, actor: str) -> Person:
        """Disable a user; raise ``AccountConflict`` for the last administrator. Their tokens stop working meanwhile."""
        found = self._change(user_id, actor, disabled_at=self._clock())
        self.end_all(user_id, actor=actor)
        return found

    def enable(self, user_id: str, *, actor: str) -> Person:
        """Enable a user, who must sign in again."""
        return self._change(user_id, actor, disabled_at=None)

    def set_role(
        self, user_id: str, *, role: str = "", access_level: str = "", organization_id: str = "", actor: str
    ) -> Person:
        """Change a user's roles from the next HTTP request on; raise ``AccountConflict`` for the last administrator."""
        return self._change(
            user_id,
            actor,
            role=store.check_role(role, "/role"),
            access_level=store.check_role(access_level, "/access_level"),
            organization_id=store.check_organization(organization_id),
        )

    def _new_person(self, name: str, role: str, access_level: str, organization_id: str) -> Person:
        now = self._clock()
        return Person(
            store.check_name(name),
            store.check_role(role, "/role"),
            store.check_role(access_level, "/access_level"),
            store.check_organization(organization_id),
            created_at=now,
            password_at=now,
            disabled_at=None,
        )

    def _set_password(self, user_id: str, password: str, *, actor: str) -> None:
        kept = self._passwords.keep(password)
        self._database.act(partial(store.set_password, person_id=user_id, kept=kept, actor=actor, now=self._clock()))

    def _change(self, user_id: str, actor: str, **values: str | datetime | None) -> Person:
        return self._database.act(
            partial(store.change_user, person_id=user_id, values=values, actor=actor, now=self._clock())
        )

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def sign_in(self, name: str, password: str, visit: Visit) -> SignedIn:
        """Start a session; raise ``SignInRefused`` or ``SignInThrottled``."""
        tried, kept = self._sign_in_check.compare(name, password, visit.address)
        secret = passwords.new_session_secret()
        agent = visit.headers.get("user-agent", "")
        session = store.new_session(new_id(), tried.name, visit.address, agent, self._clock())
        person = self._database.act(
            partial(store.open_session, session=session, token_hash=passwords.hashed(secret), kept=kept, tried=tried)
        )
        self._end(self.sessions_of(person.id)[MOST_SESSIONS:], actor=SYSTEM, why="session limit reached")
        return SignedIn(person, session, secret)

    def sign_out(self, session_id: str) -> None:
        """End the caller's session; raise ``AccountUnknown``."""
        session = self._session(session_id)
        self._end([session], actor=session.person_id, why="signed out")

    def sessions_of(self, user_id: str) -> tuple[PersonSession, ...]:
        """Return the active sessions, newest first."""
        found = self._database.ask(partial(store.list_sessions, person_id=user_id))
        return tuple(session for session in found if not self._is_over(session))

    def end_session(self, session_id: str, actor: str, *, owner: str = "") -> None:
        """End a session; with ``owner``, only a session of that user. Raise ``AccountUnknown``."""
        session = self._session(session_id)
        if owner and session.person_id != owner:
            raise AccountUnknown("this session does not exist")
        self._end([session], actor=actor, why="ended")

    def end_all(self, user_id: str, except_session: str = "", *, actor: str = "") -> int:
        """End all sessions of a user except one; return their number."""
        found = self._database.ask(partial(store.list_sessions, person_id=user_id))
        ended = [session for session in found if session.id != except_session]
        self._end(ended, actor=actor or user_id, why="ended with all others" if except_session else "ended everywhere")
        return len(ended)

    def confirm_password(self, session_id: str, password: str) -> None:
        """Check the password again for a session; raise ``SignInRefused`` or ``SignInThrottled``."""
        self._compare_again(self._session(session_id), password)
        self._database.act(partial(store.mark_session, session_id=session_id, confirmed_at=self._clock()))

    def is_confirmed(self, session_id: str, within: timedelta) -> bool:
        """Return whether the password was entered recently; False for an unknown session."""
        try:
            session = self._session(session_id)
        except AccountUnknown:
            return False
        return self._clock() - session.confirmed_at <= within

    def _by_cookie(self, cookie: str, visit: Visit) -> Identity | None:
        session = self._database.ask(partial(store.find_session_by_hash, token_hash=passwords.hashed(cookie)))
        if session is None or self._is_over(session):
            return None
        now = self._clock()
        if _is_user_activity(visit) and now - session.last_seen >= min(_SEEN_EVERY, self._idle / 4):
            with suppress(StoreUnavailable):  # for example a full disk, which is still readable
                self._database.act(partial(store.mark_session, session_id=session.id, last_seen=now))
        return Identity(session.person_id, session.id)

    def _compare_again(self, session: PersonSession, password: str) -> None:
        """Compare the password of a signed-in user; count failures, which may come from an unattended session."""
        tried, _ = self._sign_in_check.compare(session.person_id, password, f"session {session.id}")
        self._sign_in_check.settle(tried)

    def _end(self, ended: Sequence[PersonSession], *, actor: str, why: str) -> None:
        """End the approvals of sessions, then the sessions, so that a failure of the first can be retried."""
        if not ended:
            return
        for session in ended:
            self._end_approvals(session.id)
        self._database.act(partial(store.close_sessions, ended=ended, actor=actor, why=why, now=self._clock()))

    def _session(self, session_id: str) -> PersonSession:
        return self._database.ask(partial(store.find_session, session_id=session_id))

    def _is_over(self, session: PersonSession) -> bool:
        now = self._clock()
        return now - session.last_seen >= self._idle or now - session.created_at >= self._longest

    # ---- tokens ------------------------------------------------------------------------------------------------------

    def create_token(
        self,
        owner_id: str,
        label: str,
        scopes: Iterable[str],
        lifetime: timedelta | None = None,
        *,
        within: Iterable[str] | None = None,
        actor: str = "",
    ) -> tuple[Token, str]:
        """Create a token and return it with its secret, which is not stored and shown once.

        ``within`` are the scopes of the token that creates this one, which cannot exceed them. ``actor`` is the
        creator, if that is not the owner.
        """
        if lifetime is not None and not timedelta(0) < lifetime <= _LONGEST_LIFETIME:
            raise InvalidInputError.of("expected a duration of at most ten years", pointer="/lifetime")
        now = self._clock()
        expires = None if lifetime is None else now + lifetime
        allowed = store.check_scopes(scopes, within)
        token = Token(new_id(), owner_id, store.check_label(label), allowed, now, expires, None, None)
        secret = passwords.new_token_secret()
        self._database.act(
            partial(store.add_token, token=token, secret_hash=passwords.hashed(secret), actor=actor or owner_id)
        )
        return token, secret

    def tokens_of(self, user_id: str) -> tuple[Token, ...]:
        """Return a user's tokens, newest first, including recently ended ones."""
        return self._database.ask(partial(store.list_tokens, person_id=user_id))

    def revoke_token(self, token_id: str, actor: str, *, owner: str = "") -> None:
        """End a token and its approvals; with ``owner``, only a token of that user. Raise ``AccountUnknown``."""
        token = self._database.ask(partial(store.find_token, token_id=token_id))
        if owner and token.person_id != owner:
            raise AccountUnknown("this token does not exist")
        self._end_token(token, actor=actor, why="revoked")

    def _by_token(self, secret: str) -> Identity | None:
        token = self._database.ask(partial(store.find_token_by_hash, secret_hash=passwords.hashed(secret)))
        identity, now = self._of_token(token), self._clock()
        if token is not None and identity and (token.last_used is None or now - token.last_used >= _USED_EVERY):
            with suppress(StoreUnavailable):  # for example a full disk, which is still readable
                self._database.act(partial(store.touch_token, token_id=token.id, now=now))
        return identity

    def _of_token(self, token: Token | None) -> Identity | None:
        if token is None or (token.expires_at is not None and token.expires_at <= self._clock()):
            return None
        return Identity(token.person_id, token.id, frozenset(map(str, token.scopes)))

    def _end_token(self, token: Token, *, actor: str, why: str) -> None:
        self._end_approvals(token.id)
        self._database.act(partial(store.end_token, token=token, actor=actor, why=why, now=self._clock()))
