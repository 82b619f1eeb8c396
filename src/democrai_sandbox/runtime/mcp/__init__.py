"""MCP servers: tools on other machines, each spoken to under a guard that opens its endpoint and nothing else.

Importing this package does not import the ``mcp`` library, which is an extra: ``McpRuntime.prepare`` does. What modules
ask for comes through ``services``, which is the host's.
"""

from __future__ import annotations

from .errors import (
    McpBusy,
    McpDisabled,
    McpError,
    McpMissing,
    McpProtocolError,
    McpRedirected,
    McpTimeout,
    McpToolFailed,
    McpUnknown,
    McpUnreachable,
)
from .interface import McpRegistry
from .runtime import McpRuntime
from .settings import McpApproval, McpSettings

__all__ = [
    "McpApproval",
    "McpBusy",
    "McpDisabled",
    "McpError",
    "McpMissing",
    "McpProtocolError",
    "McpRedirected",
    "McpRegistry",
    "McpRuntime",
    "McpSettings",
    "McpTimeout",
    "McpToolFailed",
    "McpUnknown",
    "McpUnreachable",
]
