"""Which schema a database has, whether this version of the code can work with it, and how it gets the present one.

A database names the versions whose nodes may use it. A migration that only adds leaves those of the version before on
that list: they go on while nodes are exchanged one by one. After any other migration only the new version is on it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import inspect, text

from democrai_sandbox.errors import SchemaOutdated, StateUnusable

from .engines import unhurried
from .transactions import Database
from .urls import POSTGRESQL, parse_url, shown_url

if TYPE_CHECKING:
    from sqlalchemy import Connection

HEAD = "0009"
"""The migration that this version of the code needs. Said here, so that opening a store does not load Alembic."""

VERSION_TABLE = "access_schema"
NODES_TABLE = "access_schema_nodes"
"""The versions whose nodes may use the database, in the column ``version_num``; made with the table above."""
_BOOKKEEPING = frozenset({VERSION_TABLE, NODES_TABLE})
_ENCODING = "UTF8"
_NOTHING = ""
_UNKNOWN = "unknown"


class Schema(NamedTuple):
    """What a database says about itself."""

    version: str
    """Empty for a database in which there is nothing of ours."""
    nodes: frozenset[str]
    """The versions whose nodes may use it: its own, and those before it that it only added to."""


def find_schema(database: Database) -> Schema:
    """Return the schema of a database."""
    return database.ask(_found)


def prepare_schema(database: Database) -> None:
    """Bring an empty database to the present schema; refuse one that this version cannot work with."""
    if find_schema(database).version == _NOTHING:
        database.act(_fill)
    check_schema(database)


def check_schema(database: Database) -> Schema:
    """Return the schema when this version can work with it; say what to do otherwise."""
    found = find_schema(database)
    if HEAD in found.nodes:
        return found
    shown = shown_url(database.url)
    message = f"the database {shown} has the schema {found.version or 'of nothing'}, and {HEAD} is needed: "
    if found.version in _older():
        message += f"upgrade it with: democrai-sandbox db upgrade --database {shlex.quote(shown)}"
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


def _found(connection: Connection) -> Schema:
    _check_encoding(connection)
    names = {name for name in inspect(connection).get_table_names() if name.startswith("access_")}
    versions = _listed(connection, VERSION_TABLE) if VERSION_TABLE in names else ()
    if not versions:
        return Schema(_UNKNOWN if names - _BOOKKEEPING else _NOTHING, frozenset())
    nodes = _listed(connection, NODES_TABLE) if NODES_TABLE in names else ()
    # Two versions at once are nobody's; and a list that does not begin with the version itself is not its list.
    if len(versions) > 1 or (nodes and versions[0] not in nodes):
        return Schema(", ".join(versions), frozenset())
    return Schema(versions[0], frozenset(nodes or versions))


def _check_encoding(connection: Connection) -> None:
    """Refuse a database that cannot hold every text: what a subject asks for may be written in any script."""
    if connection.dialect.name != POSTGRESQL:
        return
    driver: Any = connection.connection.driver_connection
    encoding = driver.info.parameter_status("server_encoding")
    if encoding != _ENCODING:
        raise StateUnusable(
            f"the database {driver.info.dbname} has the encoding {encoding}, and {_ENCODING} is needed",
            fix=f"make another one: CREATE DATABASE ... ENCODING '{_ENCODING}' TEMPLATE template0",
        )


def _listed(connection: Connection, table: str) -> tuple[str, ...]:
    found = connection.execute(text(f"SELECT version_num FROM {table}")).scalars()  # noqa: S608 - a constant
    return tuple(sorted(found))


def _version(connection: Connection) -> str:
    return _found(connection).version


def _older() -> frozenset[str]:
    from .migrating import known_versions  # noqa: PLC0415 - Alembic is loaded only where there is something to migrate

    return frozenset({_NOTHING, *known_versions()} - {HEAD})


def _upgrade(connection: Connection) -> None:
    from .migrating import upgrade  # noqa: PLC0415 - the same

    upgrade(connection, HEAD)
