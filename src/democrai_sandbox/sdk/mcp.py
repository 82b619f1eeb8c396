"""Tools of registered MCP servers.

The functions with ``blocking`` in their name are for code in a thread; the others for coroutines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.services import (
    McpDisabled,
    McpError,
    McpProtocolError,
    McpRedirected,
    McpTimeout,
    McpToolFailed,
    McpUnknown,
    McpUnreachable,
)
from democrai_sandbox.runtime.sdk_services import call, later, now

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "McpDisabled",
    "McpError",
    "McpProtocolError",
    "McpRedirected",
    "McpTimeout",
    "McpToolFailed",
    "McpUnknown",
    "McpUnreachable",
    "call_tool",
    "call_tool_blocking",
    "list_tools",
    "list_tools_blocking",
]

_INSTEAD = "await the function without _blocking in its name"


async def list_tools(server: str) -> list[dict[str, Any]]:
    """Return the tools of a server: ``name``, ``description`` and ``input_schema`` of each."""
    found: list[dict[str, Any]] = await later(call("mcp.tools", server))
    return found


async def call_tool(server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Call a tool of a server and return its ``content`` and ``structured`` answer."""
    found: dict[str, Any] = await later(call("mcp.call", server, tool, dict(arguments or {})))
    return found


def list_tools_blocking(server: str) -> list[dict[str, Any]]:
    """Return the tools of a server, from a thread."""
    found: list[dict[str, Any]] = now(call("mcp.tools", server), _INSTEAD)
    return found


def call_tool_blocking(server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Call a tool of a server, from a thread."""
    found: dict[str, Any] = now(call("mcp.call", server, tool, dict(arguments or {})), _INSTEAD)
    return found
