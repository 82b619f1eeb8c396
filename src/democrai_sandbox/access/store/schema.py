"""Which schema a database has, and how it gets the present one."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from sqlalchemy import inspect, text

from democrai_sandbox.errors import SchemaOutdated

from .engines import unhurried
from .transactions import Database
from .urls import POSTGRESQL, parse_url, shown_url

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEAD = "0004"
"""The migration that this version of the code needs. Said here, so that opening a store does not load Alembic."""

VERSION_TABLE = "access_schema"
_NOTHING = ""
_UNKNOWN = "unknown"


def prepare_schema(database: Database) -> None:
    """Bring an empty database to the present schema; refuse one that another version made."""
    if database.ask(_version) == _NOTHING:
        database.act(_fill)
    check_schema(database)


def check_schema(database: Database) -> None:
    """Return when the schema is the present one; say what to do otherwise."""
    version = database.ask(_version)
    if version == HEAD:
        return
    shown = shown_url(database.url)
    message = f"the database {shown} has the schema {version or 'of nothing'}, and {HEAD} is needed: "
    if version in _older():
        message += f"upgrade it with: python -m democrai_sandbox.access upgrade {shlex.quote(shown)}"
    else:
        message += "this version of democrai-sandbox does not know it, install a newer one"
    raise SchemaOutdated(message)


def upgrade_schema(url: str) -> str:
    """Bring a database to the present schema, in one transaction; return the one that it had."""
    database = Database(parse_url(url))
    try:
        before = database.act(_upgraded)
        check_schema(database)
    finally:
        database.close()
    return before


def _fill(connection: Connection) -> None:
    """Make the schema, unless somebody else did it while this one waited for the lock."""
    with unhurried(connection):
        _lock(connection)
        if _version(connection) == _NOTHING:
            _upgrade(connection)


def _upgraded(connection: Connection) -> str:
    with unhurried(connection):
        _lock(connection)
        before = _version(connection)
        if before in _older():
            _upgrade(connection)
    return before


def _lock(connection: Connection) -> None:
    """Let one migrate at a time. SQLite's transaction has the lock already."""
    if connection.dialect.name == POSTGRESQL:
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('democrai-sandbox access schema'))"))


def _version(connection: Connection) -> str:
    """Return the schema's name; nothing for a database in which there is nothing of ours."""
    names = {name for name in inspect(connection).get_table_names() if name.startswith("access_")}
    if VERSION_TABLE in names:
        found = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalars().all()  # noqa: S608 - a constant
        if found:
            return ", ".join(sorted(found))
    return _UNKNOWN if names - {VERSION_TABLE} else _NOTHING


def _older() -> frozenset[str]:
    from .migrating import known_versions  # noqa: PLC0415 - Alembic is loaded only where there is something to migrate

    return frozenset({_NOTHING, *known_versions()} - {HEAD})


def _upgrade(connection: Connection) -> None:
    from .migrating import upgrade  # noqa: PLC0415 - the same

    upgrade(connection, HEAD)
