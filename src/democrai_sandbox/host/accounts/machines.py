"""API tokens, which act for the user who created them."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from democrai_sandbox.access.ids import new_id
from democrai_sandbox.access.store.journal import SYSTEM
from democrai_sandbox.errors import AccountUnknown, StoreUnavailable
from democrai_sandbox.host.interface import Identity
from democrai_sandbox.policy import InvalidInputError

from . import tokens
from .desk import Desk
from .secrecy import hashed, new_token_secret
from .values import Token

if TYPE_CHECKING:
    from collections.abc import Iterable

_LONGEST_LIFETIME = timedelta(days=3650)
_REMEMBERED = timedelta(days=90)
_USED_EVERY = timedelta(minutes=1)
_BEARER = re.compile(r"bearer +(\S+)", re.IGNORECASE)


def bearer_of(authorization: str) -> str | None:
    """Return the token of a ``Bearer`` header; None for other headers."""
    found = _BEARER.fullmatch(authorization.strip())
    return found.group(1) if found else None


class Machines(Desk):
    """API tokens, stored as hashes."""

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
        allowed = tokens.check_scopes(scopes, within)
        token = Token(new_id(), owner_id, tokens.check_label(label), allowed, now, expires, None, None)
        secret = new_token_secret()
        self._database.act(partial(tokens.add, token=token, secret_hash=hashed(secret), actor=actor or owner_id))
        return token, secret

    def tokens_of(self, user_id: str) -> tuple[Token, ...]:
        """Return a user's tokens, newest first, including recently ended ones."""
        return self._database.ask(partial(tokens.listed, person_id=user_id))

    def revoke_token(self, token_id: str, actor: str, *, owner: str = "") -> None:
        """End a token and its approvals; with ``owner``, only a token of that user. Raise ``AccountUnknown``."""
        token = self._database.ask(partial(tokens.find, token_id=token_id))
        if owner and token.person_id != owner:
            raise AccountUnknown("this token does not exist")
        self._end_token(token, actor=actor, why="revoked")

    def _by_token(self, secret: str) -> Identity | None:
        token = self._database.ask(partial(tokens.find_by_hash, secret_hash=hashed(secret)))
        identity = self._of_token(token)
        now = self._clock()
        if token is not None and identity and (token.last_used is None or now - token.last_used >= _USED_EVERY):
            with suppress(StoreUnavailable):  # for example a full disk, which is still readable
                self._database.act(partial(tokens.touch, token_id=token.id, now=now))
        return identity

    def _of_token(self, token: Token | None) -> Identity | None:
        if token is None or (token.expires_at is not None and token.expires_at <= self._clock()):
            return None
        return Identity(token.person_id, token.id, frozenset(map(str, token.scopes)))

    def _end_late_tokens(self) -> None:
        now = self._clock()
        for token in self._database.ask(partial(tokens.over, now=now)):
            self._end_token(token, actor=SYSTEM, why="expired")
        self._database.act(partial(tokens.prune, before=now - _REMEMBERED))

    def _end_token(self, token: Token, *, actor: str, why: str) -> None:
        self._end_approvals(token.id)
        self._database.act(partial(tokens.end, token=token, actor=actor, why=why, now=self._clock()))
