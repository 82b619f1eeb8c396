"""Rows of users, sessions and API tokens, and failed sign-ins, for all nodes.

Each change of a user, session or token holds the ledger lock, so that it is serialized and audited.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Connection, Table, delete, func, insert, or_, select, update

from democrai_sandbox.access.caller import SUPER
from democrai_sandbox.access.store.audit_log import AuditEntry, Ledger
from democrai_sandbox.access.store.tables import from_row
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import AccountConflict, AccountUnknown, SignInRefused, SignInThrottled
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.problems import nearest

from .tables import Person, PersonSession, Token, people, sessions, tokens
from .tables import throttle as failed

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from sqlalchemy import Row

MOST_ROWS = 20_000
"""Maximum number of counts; those that expire first are removed."""
_KNOWN_FOR = timedelta(days=90)
_NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class _ThrottleRule:
    """Number of free failures, and the wait after the next ones: 1, 2, 4... seconds."""

    free: int
    longest: int
    memory: timedelta

    def wait(self, count: _FailureCount, now: datetime) -> timedelta:
        """Return the remaining wait; a clock that was set back never extends it beyond the rule."""
        if count.failures < self.free:
            return _NO_TIME
        pause = timedelta(seconds=min(2 ** min(count.failures - self.free, 20), self.longest))
        return min(count.last_at + pause - now, pause)


_RULES = MappingProxyType(
    {
        "pair": _ThrottleRule(free=5, longest=900, memory=timedelta(days=1)),
        "name": _ThrottleRule(free=50, longest=30, memory=timedelta(hours=1)),
        "address": _ThrottleRule(free=50, longest=30, memory=timedelta(hours=1)),
    }
)


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """Running sign-in. It counts as failed until it is settled, so that parallel attempts gain nothing."""

    name: str
    address: str
    failures: int
    """Failures of this name from this address, including this one."""
    counted: tuple[str, ...]


def begin_sign_in(connection: Connection, name: str, address: str, now: datetime) -> SignInAttempt:
    """Count a sign-in; raise ``SignInThrottled`` without counting if it is too early.

    Three counts limit guessing: by name and address together, by name, and by address. Those by name or address alone
    are generous and short, and do not apply to a name at an address where it signed in before. So an attacker who fails
    on purpose cannot lock out a user at another address. A user who shares the attacker's address must wait too.
    """
    kinds = ("pair",) if _is_known(connection, name, address, now) else tuple(_RULES)
    keys = {kind: _key(kind, name, address) for kind in kinds}
    # Locked in a fixed order to avoid deadlocks.
    counts = {kind: _locked(connection, keys[kind], now) for kind in sorted(kinds, key=keys.__getitem__)}
    longest = max(_RULES[kind].wait(count, now) for kind, count in counts.items())
    if longest > _NO_TIME:
        raise SignInThrottled(-(-longest // timedelta(seconds=1)))
    for kind, count in counts.items():
        _put(connection, keys[kind], count.failures + 1, now, _RULES[kind].memory)
    _make_room(connection, now)
    return SignInAttempt(name, address, counts["pair"].failures + 1, kinds)


def settle_sign_in(connection: Connection, attempt: SignInAttempt, now: datetime) -> None:
    """Remove the failures before a successful sign-in, and record that the name was used at the address."""
    withdraw_sign_in(connection, attempt)
    connection.execute(delete(failed).where(failed.c.key == _key("pair", attempt.name, attempt.address)))
    _put(connection, _key("known", attempt.name, attempt.address), 0, now, _KNOWN_FOR)


def withdraw_sign_in(connection: Connection, attempt: SignInAttempt) -> None:
    """Remove the count of one sign-in that was not compared, or succeeded."""
    for key in sorted(_key(kind, attempt.name, attempt.address) for kind in attempt.counted):
        here = (failed.c.key == key, failed.c.failures > 0)
        connection.execute(update(failed).where(*here).values(failures=failed.c.failures - 1))


def forget_failures(connection: Connection, now: datetime) -> None:
    """Remove expired counts."""
    connection.execute(delete(failed).where(failed.c.forget_at <= now))


class _FailureCount(NamedTuple):
    failures: int
    last_at: datetime


def _is_known(connection: Connection, name: str, address: str, now: datetime) -> bool:
    here = (failed.c.key == _key("known", name, address), failed.c.forget_at > now)
    return connection.execute(select(failed.c.key).where(*here)).first() is not None


def _locked(connection: Connection, key: str, now: datetime) -> _FailureCount:
    """Return a count that is locked until the transaction ends.

    A missing row cannot be locked, so it is created first; if two callers create it, the second one retries.
    """
    row = connection.execute(select(failed).where(failed.c.key == key).with_for_update()).one_or_none()
    if row is None:
        connection.execute(insert(failed), {"key": key, "failures": 0, "last_at": now, "forget_at": now})
    return _FailureCount(0, now) if row is None or row.forget_at <= now else _FailureCount(row.failures, row.last_at)


def _put(connection: Connection, key: str, failures: int, now: datetime, memory: timedelta) -> None:
    values = {"failures": failures, "last_at": now, "forget_at": now + memory}
    if connection.execute(update(failed).where(failed.c.key == key).values(**values)).rowcount == 0:
        connection.execute(insert(failed), {"key": key, **values})


def _make_room(connection: Connection, now: datetime) -> None:
    forget_failures(connection, now)
    count = connection.execute(select(func.count()).select_from(failed)).scalar_one()
    if count > MOST_ROWS:
        first = select(failed.c.key).order_by(failed.c.forget_at).limit(count - MOST_ROWS)
        connection.execute(delete(failed).where(failed.c.key.in_(first.scalar_subquery())))


def _key(kind: str, name: str, address: str) -> str:
    who = "" if kind == "address" else name
    where = "" if kind == "name" else _address_key(address)
    text = repr((kind, who, where))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _address_key(address: str) -> str:
    """Return the key of an address: for IPv6 the network, because a client controls all its addresses."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found.packed[:8] + bytes(8), 64)).network_address)
    return str(found)


LONGEST_NAME = 64
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._@-]*[a-z0-9])?")
_ORGANIZATION = re.compile(r"[\w.@: -]{0,100}")
_RESERVED = frozenset({"system", "nobody"})


def check_name(name: object) -> str:
    """Return a valid user name: it occurs in the audit log, and no two names look alike."""
    if type(name) is not str or len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        message = f"expected 1 to {LONGEST_NAME} of: lower-case letters a to z, digits, and . _ @ - between them"
        raise InvalidInputError.of(message, pointer="/name", suggestion=_nearby(name))
    if name in _RESERVED:
        raise InvalidInputError.of("this name is reserved for actions of the system", pointer="/name")
    return name


def check_role(role: object, pointer: str) -> str:
    """Return a valid role or access level."""
    if role not in {"", SUPER}:
        raise InvalidInputError.of(f"expected {SUPER!r} or an empty text", pointer=pointer, suggestion=SUPER)
    return str(role)


def check_organization(organization: object) -> str:
    """Return a valid organization id. Users with an organization cannot decide."""
    if type(organization) is not str or not _ORGANIZATION.fullmatch(organization):
        raise InvalidInputError.of("expected at most 100 letters, digits and . _ @ : -", pointer="/organization_id")
    return organization.strip()


def add_user(
    connection: Connection, person: Person, kept: str, *, actor: str, only_first: bool = False
) -> Person | None:
    """Add a user; raise ``AccountConflict``. With ``only_first``, return None if any user exists."""
    ledger = Ledger(connection)
    if only_first and has_users(connection):
        return None
    if _user_row(connection, person.id) is not None:
        raise AccountConflict(f"the user {person.id} already exists")
    connection.execute(insert(people), {**_columns(people, person), "password": kept})
    after = {"person": person.id, **_audited_fields(person)}
    ledger.close([AuditEntry(AuditAction.ACCOUNT_ADDED, actor, after=after)], now=person.created_at)
    return person


def change_user(connection: Connection, person_id: str, values: dict[str, Any], *, actor: str, now: datetime) -> Person:
    """Change a user; refuse it if no administrator would remain."""
    ledger = Ledger(connection)
    before = find_user(connection, person_id)
    connection.execute(update(people).where(people.c.id == person_id).values(**values))
    after = find_user(connection, person_id)
    if before.may_decide and not after.may_decide and not any(one.may_decide for one in list_users(connection)):
        raise AccountConflict(f"{person_id} is the last administrator: no other user could decide or undo this")
    if before != after:
        fields, changed = _audited_fields(before), {"person": person_id, **_audited_fields(after)}
        ledger.close([AuditEntry(AuditAction.ACCOUNT_CHANGED, actor, before=fields, after=changed)], now=now)
    return after


def set_password(connection: Connection, person_id: str, kept: str, *, actor: str, now: datetime) -> None:
    """Replace a password."""
    ledger = Ledger(connection)
    find_user(connection, person_id)
    connection.execute(update(people).where(people.c.id == person_id).values(password=kept, password_at=now))
    after = {"person": person_id}
    ledger.close([AuditEntry(AuditAction.ACCOUNT_PASSWORD_CHANGED, actor, after=after)], now=now)


def replace_hash(connection: Connection, person_id: str, before: str, kept: str) -> bool:
    """Replace the hash of the same password, unless the password was changed meanwhile; return whether it was done."""
    same = (people.c.id == person_id, people.c.password == before)
    return connection.execute(update(people).where(*same).values(password=kept)).rowcount == 1


def find_user(connection: Connection, person_id: str) -> Person:
    """Return a user; raise ``AccountUnknown``."""
    return from_row(Person, _known(_user_row(connection, person_id), "user"))


def _known(row: Row[Any] | None, what: str) -> Row[Any]:
    if row is None:
        raise AccountUnknown(f"this {what} does not exist")
    return row


def find_user_or_none(connection: Connection, person_id: str) -> Person | None:
    """Return a user, or None."""
    row = _user_row(connection, person_id)
    return None if row is None else from_row(Person, row)


def password_hash(connection: Connection, person_id: str) -> str | None:
    """Return the hash of a user's password; None for an unknown or disabled user."""
    row = _user_row(connection, person_id)
    return None if row is None or row.disabled_at is not None else str(row.password)


def has_users(connection: Connection) -> bool:
    """Return whether any user exists, disabled or not."""
    return connection.execute(select(people.c.id).limit(1)).first() is not None


def list_users(connection: Connection) -> tuple[Person, ...]:
    """Return all users by name."""
    return tuple(from_row(Person, row) for row in connection.execute(select(people).order_by(people.c.id)))


def _user_row(connection: Connection, person_id: str) -> Row[Any] | None:
    return connection.execute(select(people).where(people.c.id == person_id)).one_or_none()


def _columns(table: Table, value: Person | PersonSession | Token) -> dict[str, Any]:
    """Return a value as the columns of its table, without the secret."""
    return {name: getattr(value, name) for name in table.c.keys() if hasattr(value, name)}  # noqa: SIM118 - no mapping


def _audited_fields(person: Person) -> dict[str, Any]:
    roles = {name: getattr(person, name) for name in ("role", "access_level", "organization_id")}
    return {**roles, "disabled": person.disabled_at is not None}


def _nearby(name: object) -> str | None:
    if type(name) is not str or len(name) > LONGEST_NAME:
        return None
    near = re.sub(r"[^a-z0-9._@-]+", "-", name.strip().lower()).strip("._@-")
    return near or None


_LONGEST_AGENT = 300
_LONGEST_ADDRESS = 100

# Built once, because every HTTP request uses it.
_SESSION_ROWS = select(sessions, people.c.disabled_at).join(people, people.c.id == sessions.c.person_id)


def new_session(session_id: str, person_id: str, address: str, agent: str, now: datetime) -> PersonSession:
    """Return a new session; shorten an overlong user agent."""
    return PersonSession(session_id, person_id, address[:_LONGEST_ADDRESS], agent[:_LONGEST_AGENT], now, now, now)


def open_session(
    connection: Connection, session: PersonSession, token_hash: str, kept: str, tried: SignInAttempt
) -> Person:
    """Sign in a user after the password check; refuse it if the password has changed since."""
    ledger = Ledger(connection)
    if password_hash(connection, session.person_id) != kept:
        raise SignInRefused
    now = session.created_at
    settle_sign_in(connection, tried, now)
    connection.execute(insert(sessions), {**_columns(sessions, session), "token_hash": token_hash})
    after = {"person": session.person_id, "address": session.address, "session": session.id}
    if tried.failures > 1:
        after["failed_before"] = str(tried.failures - 1)
    ledger.close([AuditEntry(AuditAction.ACCOUNT_SIGNED_IN, session.person_id, after=after)], now=now)
    return find_user(connection, session.person_id)


def find_session_by_hash(connection: Connection, token_hash: str) -> PersonSession | None:
    """Return the session of a cookie, unless its user is disabled."""
    row = connection.execute(_SESSION_ROWS.where(sessions.c.token_hash == token_hash)).one_or_none()
    return None if row is None or row.disabled_at is not None else from_row(PersonSession, row)


def find_session(connection: Connection, session_id: str) -> PersonSession:
    """Return a session; raise ``AccountUnknown``."""
    row = connection.execute(select(sessions).where(sessions.c.id == session_id)).one_or_none()
    return from_row(PersonSession, _known(row, "session"))


def sessions_by_hash(connection: Connection, owners: Iterable[str]) -> dict[str, PersonSession]:
    """Return the sessions of these users, by the hash of their cookie."""
    rows = connection.execute(select(sessions).where(sessions.c.person_id.in_(list(owners))))
    return {row.token_hash: from_row(PersonSession, row) for row in rows}


def list_sessions(connection: Connection, person_id: str) -> tuple[PersonSession, ...]:
    """Return a user's sessions, newest first."""
    query = select(sessions).where(sessions.c.person_id == person_id)
    newest = query.order_by(sessions.c.created_at.desc(), sessions.c.id.desc())
    return tuple(from_row(PersonSession, row) for row in connection.execute(newest))


def expired_sessions(
    connection: Connection, *, idle_since: datetime, created_before: datetime
) -> tuple[PersonSession, ...]:
    """Return the expired sessions."""
    late = or_(sessions.c.last_seen <= idle_since, sessions.c.created_at <= created_before)
    return tuple(from_row(PersonSession, row) for row in connection.execute(select(sessions).where(late).limit(1000)))


def mark_session(connection: Connection, session_id: str, **times: datetime) -> None:
    """Record when a session was used, or when the password was entered again."""
    connection.execute(update(sessions).where(sessions.c.id == session_id).values(**times))


def close_sessions(
    connection: Connection, ended: Iterable[PersonSession], *, actor: str, why: str, now: datetime
) -> None:
    """Delete sessions and audit it; skip those that were already deleted."""
    ledger = Ledger(connection)
    deleted = (
        {"person": session.person_id, "session": session.id, "why": why}
        for session in ended
        if connection.execute(delete(sessions).where(sessions.c.id == session.id)).rowcount == 1
    )
    ledger.close([AuditEntry(AuditAction.ACCOUNT_SIGNED_OUT, actor, after=one) for one in deleted], now=now)


MOST_TOKENS = 100
"""Tokens per user, without revoked ones."""
LONGEST_LABEL = 100

_IN_USE = tokens.c.ended_at.is_(None)
_TOKEN_ROWS = select(tokens, people.c.disabled_at).join(people, people.c.id == tokens.c.person_id)


def check_label(label: object) -> str:
    """Return a valid label, by which users distinguish tokens."""
    if type(label) is not str or not label.strip() or len(label) > LONGEST_LABEL:
        raise InvalidInputError.of(f"expected a text of 1 to {LONGEST_LABEL} characters", pointer="/label")
    return label.strip()


def check_scopes(scopes: Iterable[object], within: Iterable[str] | None) -> frozenset[Scope]:
    """Return valid scopes that the creator has; ``within`` None has all scopes."""
    given = list(scopes)
    if not given:
        raise InvalidInputError.of("a token needs at least one scope", pointer="/scopes")
    known = {str(scope) for scope in Scope}
    problems = [
        Problem(f"/scopes/{place}", "unknown scope", nearest(str(scope), known))
        for place, scope in enumerate(given)
        if scope not in known
    ]
    if not problems and within is not None:
        missing = sorted({str(scope) for scope in given} - {str(scope) for scope in within})
        problems = [Problem("/scopes", f"the token that creates this one lacks {scope}") for scope in missing]
    if problems:
        raise InvalidInputError(problems)
    return frozenset(Scope(str(scope)) for scope in given)


def add_token(connection: Connection, token: Token, secret_hash: str, *, actor: str) -> None:
    """Add a token; raise ``AccountUnknown`` for an unknown owner."""
    ledger = Ledger(connection)
    find_user(connection, token.person_id)
    own = (tokens.c.person_id == token.person_id, _IN_USE)
    if connection.execute(select(func.count()).select_from(tokens).where(*own)).scalar_one() >= MOST_TOKENS:
        raise AccountConflict(f"{MOST_TOKENS} tokens are in use, the maximum: revoke one of them first")
    scopes = " ".join(sorted(token.scopes))
    connection.execute(insert(tokens), {**_columns(tokens, token), "scopes": scopes, "secret_hash": secret_hash})
    after = {"person": token.person_id, "token": token.id, "label": token.label, "scopes": sorted(token.scopes)}
    ledger.close([AuditEntry(AuditAction.ACCOUNT_TOKEN_MADE, actor, after=after)], now=token.created_at)


def find_token_by_hash(connection: Connection, secret_hash: str) -> Token | None:
    """Return the token of a secret, unless it is revoked or its owner is disabled."""
    row = connection.execute(_TOKEN_ROWS.where(tokens.c.secret_hash == secret_hash, _IN_USE)).one_or_none()
    return None if row is None or row.disabled_at is not None else _to_token(row)


def find_token(connection: Connection, token_id: str) -> Token:
    """Return a token; raise ``AccountUnknown``."""
    row = connection.execute(select(tokens).where(tokens.c.id == token_id)).one_or_none()
    return _to_token(_known(row, "token"))


def list_tokens(connection: Connection, person_id: str) -> tuple[Token, ...]:
    """Return a user's tokens, newest first, including recently revoked ones."""
    query = select(tokens).where(tokens.c.person_id == person_id)
    return tuple(map(_to_token, connection.execute(query.order_by(tokens.c.created_at.desc(), tokens.c.id.desc()))))


def tokens_by_hash(connection: Connection, owners: Iterable[str]) -> dict[str, Token]:
    """Return the tokens of these users that are not revoked, by the hash of their secret."""
    rows = connection.execute(select(tokens).where(_IN_USE, tokens.c.person_id.in_(list(owners))))
    return {row.secret_hash: _to_token(row) for row in rows}


def expired_tokens(connection: Connection, now: datetime) -> tuple[Token, ...]:
    """Return the expired tokens that are not marked as ended yet."""
    return tuple(map(_to_token, connection.execute(select(tokens).where(_IN_USE, tokens.c.expires_at <= now))))


def touch_token(connection: Connection, token_id: str, now: datetime) -> None:
    """Record that a token was used."""
    connection.execute(update(tokens).where(tokens.c.id == token_id).values(last_used=now))


def end_token(connection: Connection, token: Token, *, actor: str, why: str, now: datetime) -> None:
    """Mark a token as ended, and audit it once."""
    ledger = Ledger(connection)
    changed = connection.execute(update(tokens).where(tokens.c.id == token.id, _IN_USE).values(ended_at=now)).rowcount
    after = {"person": token.person_id, "token": token.id, "label": token.label, "why": why}
    ledger.close([AuditEntry(AuditAction.ACCOUNT_TOKEN_REVOKED, actor, after=after)] if changed else [], now=now)


def prune_tokens(connection: Connection, before: datetime) -> None:
    """Delete tokens that ended before a time; the audit log keeps them."""
    connection.execute(delete(tokens).where(tokens.c.ended_at < before))


def _to_token(row: Row[Any]) -> Token:
    known = {str(scope) for scope in Scope}
    scopes = frozenset(Scope(scope) for scope in row.scopes.split() if scope in known)
    return from_row(Token, row, scopes=scopes)
