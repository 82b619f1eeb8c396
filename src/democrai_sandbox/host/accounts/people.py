"""Rows of users. Each change holds the ledger lock, so that it is audited and changes are serialized."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, insert, select, update

from democrai_sandbox.access.identity import SUPER
from democrai_sandbox.access.store.journal import Entry, Ledger
from democrai_sandbox.access.values import AuditAction
from democrai_sandbox.errors import AccountConflict, AccountUnknown
from democrai_sandbox.policy import InvalidInputError

from .tables import people
from .values import Person

if TYPE_CHECKING:
    from datetime import datetime

    from sqlalchemy import Row

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


def add(connection: Connection, person: Person, kept: str, *, actor: str, only_first: bool = False) -> Person | None:
    """Add a user; raise ``AccountConflict``. With ``only_first``, return None if any user exists."""
    ledger = Ledger(connection)
    if only_first and is_anybody(connection):
        return None
    if _row(connection, person.id) is not None:
        raise AccountConflict(f"the user {person.id} already exists")
    connection.execute(insert(people), {**_columns(person), "password": kept})
    _tell(ledger, AuditAction.ACCOUNT_ADDED, actor, person.id, person.created_at, after=_shown(person))
    return person


def change(connection: Connection, person_id: str, values: dict[str, Any], *, actor: str, now: datetime) -> Person:
    """Change a user; refuse it if no administrator would remain."""
    ledger = Ledger(connection)
    before = find(connection, person_id)
    connection.execute(update(people).where(people.c.id == person_id).values(**values))
    after = find(connection, person_id)
    if before.may_decide and not after.may_decide and not any(one.may_decide for one in listed(connection)):
        raise AccountConflict(f"{person_id} is the last administrator: no other user could decide or undo this")
    if before != after:
        _tell(ledger, AuditAction.ACCOUNT_CHANGED, actor, person_id, now, before=_shown(before), after=_shown(after))
    return after


def set_password(connection: Connection, person_id: str, kept: str, *, actor: str, now: datetime) -> None:
    """Replace a password."""
    ledger = Ledger(connection)
    find(connection, person_id)
    connection.execute(update(people).where(people.c.id == person_id).values(password=kept, password_at=now))
    _tell(ledger, AuditAction.ACCOUNT_PASSWORD_CHANGED, actor, person_id, now)


def strengthen(connection: Connection, person_id: str, before: str, kept: str) -> bool:
    """Replace the hash of the same password, unless the password was changed meanwhile; return whether it was done."""
    same = (people.c.id == person_id, people.c.password == before)
    return connection.execute(update(people).where(*same).values(password=kept)).rowcount == 1


def find(connection: Connection, person_id: str) -> Person:
    """Return a user; raise ``AccountUnknown``."""
    row = _row(connection, person_id)
    if row is None:
        raise AccountUnknown("this user does not exist")
    return to_person(row)


def find_or_none(connection: Connection, person_id: str) -> Person | None:
    """Return a user, or None."""
    row = _row(connection, person_id)
    return None if row is None else to_person(row)


def kept_password(connection: Connection, person_id: str) -> str | None:
    """Return the hash of a user's password; None for an unknown or disabled user."""
    row = _row(connection, person_id)
    return None if row is None or row.disabled_at is not None else str(row.password)


def is_anybody(connection: Connection) -> bool:
    """Return whether any user exists, disabled or not."""
    return connection.execute(select(people.c.id).limit(1)).first() is not None


def listed(connection: Connection) -> tuple[Person, ...]:
    """Return all users by name."""
    return tuple(map(to_person, connection.execute(select(people).order_by(people.c.id))))


def to_person(row: Row[Any]) -> Person:
    """Convert a row, without the password."""
    return Person(
        row.id, row.role, row.access_level, row.organization_id, row.created_at, row.password_at, row.disabled_at
    )


def _row(connection: Connection, person_id: str) -> Row[Any] | None:
    return connection.execute(select(people).where(people.c.id == person_id)).one_or_none()


def _columns(person: Person) -> dict[str, Any]:
    return {name: getattr(person, name) for name in people.c.keys() if name != "password"}  # noqa: SIM118 - no mapping


def _shown(person: Person) -> dict[str, Any]:
    """Return the fields of a user for the audit log."""
    return {
        "role": person.role,
        "access_level": person.access_level,
        "organization_id": person.organization_id,
        "disabled": person.disabled_at is not None,
    }


def _tell(
    ledger: Ledger,
    action: AuditAction,
    actor: str,
    person_id: str,
    now: datetime,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    ledger.close([Entry(action, actor, before=before, after={"person": person_id, **(after or {})})], now=now)


def _nearby(name: object) -> str | None:
    if type(name) is not str or len(name) > LONGEST_NAME:
        return None
    near = re.sub(r"[^a-z0-9._@-]+", "-", name.strip().lower()).strip("._@-")
    return near or None
