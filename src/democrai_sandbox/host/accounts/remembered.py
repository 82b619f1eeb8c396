"""Tokens and sessions of administrators in memory: they give access to the status while the database is down.

Hashes and public values only. They are read again every few seconds while the database is reachable, so a revocation
before an outage holds. They open only the status and the metrics.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Connection, or_, select

from democrai_sandbox.access.identity import SUPER

from . import sessions, tokens
from .people import to_person
from .tables import people

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.host.interface import Identity, Roles

    from .values import PersonSession, Token


class Remembered(NamedTuple):
    """Tokens and sessions at the last read of the database, by the hash of their secret."""

    roles: Mapping[str, Roles]
    """Roles of administrators, by id."""
    tokens: Mapping[str, Token]
    sessions: Mapping[str, PersonSession]

    def with_roles(self, identity: Identity) -> tuple[Identity, Roles] | None:
        """Return an identity with the roles of its owner."""
        roles = self.roles.get(identity.user_id)
        return None if roles is None else (identity, roles)


NOTHING = Remembered(MappingProxyType({}), MappingProxyType({}), MappingProxyType({}))


def read(connection: Connection) -> Remembered:
    """Read the tokens and sessions of administrators."""
    is_super = or_(people.c.role == SUPER, people.c.access_level == SUPER)
    found = map(to_person, connection.execute(select(people).where(is_super, people.c.disabled_at.is_(None))))
    roles = {person.id: person.roles for person in found if person.may_decide}
    return Remembered(roles, tokens.in_use(connection, roles), sessions.by_hash(connection, roles))
