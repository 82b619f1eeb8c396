"""Entries that administrators make: MCP servers, and the stored configuration of engines and extractors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, delete, insert, select, update

from democrai_sandbox.manifests import ManifestError, McpServer, make_manifest
from democrai_sandbox.policy import InvalidInputError

from .documents import LONGEST_SETTINGS, checked_name, from_json, to_json
from .errors import EntryExists, EntryUnknown
from .tables import engine_settings, mcp_servers

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from sqlalchemy import Row

_log = logging.getLogger("democrai_sandbox.runtime")
_FIELDS = ("name", "transport", "endpoint_url", "enabled", "timeout_ms")
_KINDS = ("engine", "extractor")


def checked_server(entry: McpServer | Mapping[str, object]) -> McpServer:
    """Return a server as the rules for manifests have it; all that is wrong with it is said at once."""
    value = _written(entry) if isinstance(entry, McpServer) else entry
    return make_manifest(value, McpServer)


def add_server(connection: Connection, server: McpServer, now: datetime) -> McpServer:
    """Add an entry; raises ``EntryExists``."""
    if connection.execute(select(mcp_servers.c.name).where(mcp_servers.c.name == server.name)).first() is not None:
        raise EntryExists(f"there is an MCP server {server.name} already")
    connection.execute(insert(mcp_servers), {**_row(server), "created_at": now, "updated_at": now})
    return server


def update_server(connection: Connection, name: str, changes: Mapping[str, object], now: datetime) -> McpServer:
    """Change an entry; its name stays, because approvals are about it. Raises ``EntryUnknown``."""
    if changes.get("name", name) != name:
        raise InvalidInputError.of("an entry keeps its name: add another one", pointer="/name")
    server = make_manifest({**_written(get_server(connection, name)), **changes}, McpServer)
    connection.execute(update(mcp_servers).where(mcp_servers.c.name == name).values(**_row(server), updated_at=now))
    return server


def remove_server(connection: Connection, name: str) -> None:
    """Remove an entry; raises ``EntryUnknown``."""
    if connection.execute(delete(mcp_servers).where(mcp_servers.c.name == name)).rowcount != 1:
        raise _unknown(name)


def get_server(connection: Connection, name: str) -> McpServer:
    """Return one entry; raises ``EntryUnknown``."""
    row = connection.execute(select(mcp_servers).where(mcp_servers.c.name == name)).one_or_none()
    if row is None:
        raise _unknown(name)
    return _server(row)


def list_servers(connection: Connection) -> tuple[McpServer, ...]:
    """Return all entries by name. One that somebody broke behind our back is told of and left out."""
    found = []
    for row in connection.execute(select(mcp_servers).order_by(mcp_servers.c.name)):
        try:
            found.append(_server(row))
        except ManifestError as error:
            _log.error("the registry entry of MCP server %r is not valid: %s", row.name, error)
    return tuple(found)


def get_settings(connection: Connection, kind: str, name: str) -> dict[str, Any]:
    """Return the stored configuration; empty where there is none."""
    text = connection.execute(select(engine_settings.c.settings).where(*_same(kind, name))).scalar()
    value = from_json(text or "")
    return value if isinstance(value, dict) else {}


def set_settings(connection: Connection, kind: str, name: str, settings: Mapping[str, object], now: datetime) -> None:
    """Store a configuration in place of the one before."""
    if type(settings) is not dict or not all(type(key) is str for key in settings):
        raise InvalidInputError.of("expected an object whose keys are texts", pointer="/settings")
    text = to_json(settings, longest=LONGEST_SETTINGS, pointer="/settings")
    values = {"settings": text, "updated_at": now}
    if connection.execute(update(engine_settings).where(*_same(kind, name)).values(**values)).rowcount == 0:
        row = {"kind": kind, "name": checked_name(name, "/name"), **values}
        connection.execute(insert(engine_settings), row)


def remove_settings(connection: Connection, kind: str, name: str) -> bool:
    """Forget a configuration."""
    return connection.execute(delete(engine_settings).where(*_same(kind, name))).rowcount == 1


def _same(kind: str, name: str) -> tuple[Any, ...]:
    if kind not in _KINDS:
        raise InvalidInputError.of(f"expected one of {', '.join(_KINDS)}, got {kind!r}", pointer="/kind")
    return (engine_settings.c.kind == kind, engine_settings.c.name == name)


def _written(server: McpServer) -> dict[str, object]:
    written = {name: getattr(server, name) for name in _FIELDS}
    return {**written, "transport": str(server.transport)}


def _row(server: McpServer) -> dict[str, Any]:
    return {**_written(server), "enabled": int(server.enabled)}


def _server(row: Row[Any]) -> McpServer:
    value = {name: getattr(row, name) for name in _FIELDS}
    return make_manifest({**value, "enabled": bool(row.enabled)}, McpServer)


def _unknown(name: str) -> EntryUnknown:
    return EntryUnknown(f"there is no MCP server {name}")
