"""The tools of registered MCP servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.runtime import doors

if TYPE_CHECKING:
    from collections.abc import Mapping


async def list_tools(server: str) -> list[dict[str, Any]]:
    """Return what a server offers: ``name``, ``description`` and ``input_schema`` of each tool."""
    found: list[dict[str, Any]] = await doors.call("mcp.tools", server)
    return found


async def call_tool(server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Call a tool of a server and return its ``content`` and ``structured`` answer."""
    found: dict[str, Any] = await doors.call("mcp.call", server, tool, dict(arguments or {}))
    return found
