"""Rows of API tokens: owner, scopes and expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, func, insert, select, update

from democrai_sandbox.access.store.journal import Entry, Ledger
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import AccountConflict, AccountUnknown
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.problems import nearest

from .people import find as find_person
from .tables import people, tokens
from .values import Token

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from sqlalchemy import Row

MOST_TOKENS = 100
"""Tokens per user, without revoked ones."""
LONGEST_LABEL = 100

_IN_USE = tokens.c.ended_at.is_(None)
_FOUND = select(tokens, people.c.disabled_at).join(people, people.c.id == tokens.c.person_id)


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


def add(connection: Connection, token: Token, secret_hash: str, *, actor: str) -> Token:
    """Add a token; raise ``AccountUnknown`` for an unknown owner."""
    ledger = Ledger(connection)
    find_person(connection, token.person_id)
    own = (tokens.c.person_id == token.person_id, _IN_USE)
    if connection.execute(select(func.count()).select_from(tokens).where(*own)).scalar_one() >= MOST_TOKENS:
        raise AccountConflict(f"{MOST_TOKENS} tokens are in use, the maximum: revoke one of them first")
    row = {name: getattr(token, name) for name in tokens.c.keys() if name not in {"secret_hash", "scopes"}}  # noqa: SIM118 - no mapping
    connection.execute(insert(tokens), {**row, "scopes": _joined(token), "secret_hash": secret_hash})
    after = {"person": token.person_id, "token": token.id, "label": token.label, "scopes": sorted(token.scopes)}
    ledger.close([Entry(AuditAction.ACCOUNT_TOKEN_MADE, actor, after=after)], now=token.created_at)
    return token


def find_by_hash(connection: Connection, secret_hash: str) -> Token | None:
    """Return the token of a secret, unless it is revoked or its owner is disabled."""
    row = connection.execute(_FOUND.where(tokens.c.secret_hash == secret_hash, _IN_USE)).one_or_none()
    return None if row is None or row.disabled_at is not None else _to_token(row)


def find(connection: Connection, token_id: str) -> Token:
    """Return a token; raise ``AccountUnknown``."""
    row = connection.execute(select(tokens).where(tokens.c.id == token_id)).one_or_none()
    if row is None:
        raise AccountUnknown("this token does not exist")
    return _to_token(row)


def listed(connection: Connection, person_id: str) -> tuple[Token, ...]:
    """Return a user's tokens, newest first, including recently revoked ones."""
    query = select(tokens).where(tokens.c.person_id == person_id)
    return tuple(map(_to_token, connection.execute(query.order_by(tokens.c.created_at.desc(), tokens.c.id.desc()))))


def in_use(connection: Connection, owners: Iterable[str]) -> dict[str, Token]:
    """Return the tokens of these users that are not revoked, by the hash of their secret."""
    rows = connection.execute(select(tokens).where(_IN_USE, tokens.c.person_id.in_(list(owners))))
    return {row.secret_hash: _to_token(row) for row in rows}


def over(connection: Connection, now: datetime) -> tuple[Token, ...]:
    """Return the expired tokens that are not marked as ended yet."""
    return tuple(map(_to_token, connection.execute(select(tokens).where(_IN_USE, tokens.c.expires_at <= now))))


def touch(connection: Connection, token_id: str, now: datetime) -> None:
    """Record that a token was used."""
    connection.execute(update(tokens).where(tokens.c.id == token_id).values(last_used=now))


def end(connection: Connection, token: Token, *, actor: str, why: str, now: datetime) -> None:
    """Mark a token as ended, and audit it once."""
    ledger = Ledger(connection)
    changed = connection.execute(update(tokens).where(tokens.c.id == token.id, _IN_USE).values(ended_at=now)).rowcount
    after = {"person": token.person_id, "token": token.id, "label": token.label, "why": why}
    ledger.close([Entry(AuditAction.ACCOUNT_TOKEN_REVOKED, actor, after=after)] if changed else [], now=now)


def prune(connection: Connection, before: datetime) -> None:
    """Delete tokens that ended before a time; the audit log keeps them."""
    connection.execute(delete(tokens).where(tokens.c.ended_at < before))


def _joined(token: Token) -> str:
    return " ".join(sorted(token.scopes))


def _to_token(row: Row[Any]) -> Token:
    known = {str(scope) for scope in Scope}
    scopes = frozenset(Scope(scope) for scope in row.scopes.split() if scope in known)
    return Token(row.id, row.person_id, row.label, scopes, row.created_at, row.expires_at, row.last_used, row.ended_at)
