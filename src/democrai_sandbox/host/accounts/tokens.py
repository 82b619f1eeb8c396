"""Rows of tokens: what machines come in with, for whom, for what, until when."""

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
"""Of one person, not counting those that were revoked."""
LONGEST_LABEL = 100

_IN_USE = tokens.c.ended_at.is_(None)
_FOUND = select(tokens, people.c.disabled_at).join(people, people.c.id == tokens.c.person_id)


def check_label(label: object) -> str:
    """Return a label by which a person tells tokens apart."""
    if type(label) is not str or not label.strip() or len(label) > LONGEST_LABEL:
        raise InvalidInputError.of(f"expected a text of 1 to {LONGEST_LABEL} characters", pointer="/label")
    return label.strip()


def check_scopes(scopes: Iterable[object], within: Iterable[str] | None) -> frozenset[Scope]:
    """Return scopes that there are, and that whoever makes the token has; ``within`` None has them all."""
    given = list(scopes)
    if not given:
        raise InvalidInputError.of("a token is good for one thing at least", pointer="/scopes")
    known = {str(scope) for scope in Scope}
    problems = [
        Problem(f"/scopes/{place}", "there is no such scope", nearest(str(scope), known))
        for place, scope in enumerate(given)
        if scope not in known
    ]
    if not problems and within is not None:
        missing = sorted({str(scope) for scope in given} - {str(scope) for scope in within})
        problems = [Problem("/scopes", f"the token that makes this one lacks {scope} itself") for scope in missing]
    if problems:
        raise InvalidInputError(problems)
    return frozenset(Scope(str(scope)) for scope in given)


def add(connection: Connection, token: Token, secret_hash: str, *, actor: str) -> Token:
    """Add a token; raises ``AccountUnknown`` for an owner who is not there."""
    ledger = Ledger(connection)
    find_person(connection, token.person_id)
    own = (tokens.c.person_id == token.person_id, _IN_USE)
    if connection.execute(select(func.count()).select_from(tokens).where(*own)).scalar_one() >= MOST_TOKENS:
        raise AccountConflict(f"there are {MOST_TOKENS} tokens in use: revoke one of them first")
    row = {name: getattr(token, name) for name in tokens.c.keys() if name not in {"secret_hash", "scopes"}}  # noqa: SIM118 - no mapping
    connection.execute(insert(tokens), {**row, "scopes": _joined(token), "secret_hash": secret_hash})
    after = {"person": token.person_id, "token": token.id, "label": token.label, "scopes": sorted(token.scopes)}
    ledger.close([Entry(AuditAction.ACCOUNT_TOKEN_MADE, actor, after=after)], now=token.created_at)
    return token


def find_by_hash(connection: Connection, secret_hash: str) -> Token | None:
    """Return the token of a secret, unless it was revoked or its owner is shut out."""
    row = connection.execute(_FOUND.where(tokens.c.secret_hash == secret_hash, _IN_USE)).one_or_none()
    return None if row is None or row.disabled_at is not None else _to_token(row)


def find(connection: Connection, token_id: str) -> Token:
    """Return a token; raises ``AccountUnknown``."""
    row = connection.execute(select(tokens).where(tokens.c.id == token_id)).one_or_none()
    if row is None:
        raise AccountUnknown("there is no such token")
    return _to_token(row)


def listed(connection: Connection, person_id: str) -> tuple[Token, ...]:
    """Return somebody's tokens, the newest first, with those that were revoked not long ago."""
    query = select(tokens).where(tokens.c.person_id == person_id)
    return tuple(map(_to_token, connection.execute(query.order_by(tokens.c.created_at.desc(), tokens.c.id.desc()))))


def in_use(connection: Connection, owners: Iterable[str]) -> dict[str, Token]:
    """Return the tokens of these people that were not revoked, by the hash of their secret."""
    rows = connection.execute(select(tokens).where(_IN_USE, tokens.c.person_id.in_(list(owners))))
    return {row.secret_hash: _to_token(row) for row in rows}


def over(connection: Connection, now: datetime) -> tuple[Token, ...]:
    """Return the tokens that expired and were not put down as ended yet."""
    return tuple(map(_to_token, connection.execute(select(tokens).where(_IN_USE, tokens.c.expires_at <= now))))


def touch(connection: Connection, token_id: str, now: datetime) -> None:
    """Say that a token was used."""
    connection.execute(update(tokens).where(tokens.c.id == token_id).values(last_used=now))


def end(connection: Connection, token: Token, *, actor: str, why: str, now: datetime) -> None:
    """Put a token down as ended, and tell it once."""
    ledger = Ledger(connection)
    changed = connection.execute(update(tokens).where(tokens.c.id == token.id, _IN_USE).values(ended_at=now)).rowcount
    after = {"person": token.person_id, "token": token.id, "label": token.label, "why": why}
    ledger.close([Entry(AuditAction.ACCOUNT_TOKEN_REVOKED, actor, after=after)] if changed else [], now=now)


def prune(connection: Connection, before: datetime) -> None:
    """Forget tokens that ended before a time; the audit has them still."""
    connection.execute(delete(tokens).where(tokens.c.ended_at < before))


def _joined(token: Token) -> str:
    return " ".join(sorted(token.scopes))


def _to_token(row: Row[Any]) -> Token:
    known = {str(scope) for scope in Scope}
    scopes = frozenset(Scope(scope) for scope in row.scopes.split() if scope in known)
    return Token(row.id, row.person_id, row.label, scopes, row.created_at, row.expires_at, row.last_used, row.ended_at)
