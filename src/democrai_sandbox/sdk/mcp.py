"""Tools of registered MCP servers.

The functions with ``blocking`` in their name are for code in a thread; the others for coroutines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import GuardUsageError
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
from democrai_sandbox.runtime import sdk_services

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


async def list_tools(server: str) -> list[dict[str, Any]]:
    """Return the tools of a server: ``name``, ``description`` and ``input_schema`` of each."""
    found: list[dict[str, Any]] = await _later(sdk_services.call("mcp.tools", server))
    return found


async def call_tool(server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Call a tool of a server and return its ``content`` and ``structured`` answer."""
    found: dict[str, Any] = await _later(sdk_services.call("mcp.call", server, tool, dict(arguments or {})))
    return found


def list_tools_blocking(server: str) -> list[dict[str, Any]]:
    """Return the tools of a server, from a thread."""
    found: list[dict[str, Any]] = _now(sdk_services.call("mcp.tools", server))
    return found


def call_tool_blocking(server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Call a tool of a server, from a thread."""
    found: dict[str, Any] = _now(sdk_services.call("mcp.call", server, tool, dict(arguments or {})))
    return found


async def _later(answer: Any) -> Any:
    return await answer if asyncio.isfuture(answer) else answer


def _now(answer: Any) -> Any:
    if not asyncio.isfuture(answer):
        return answer
    if answer.done():
        return answer.result()
    answer.cancel()
    raise GuardUsageError("this would block the event loop: await the function without _blocking in its name")
