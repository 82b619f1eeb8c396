"""MCP servers: tools on other machines, each contacted under a guard that permits only its endpoint.

Importing this package does not import the ``mcp`` library, which is an extra: ``McpRuntime.prepare`` does. Modules call
the host's ``services``.
"""

from __future__ import annotations

from democrai_sandbox.errors.services import (
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
from democrai_sandbox.runtime.extensions.settings import McpApproval
from democrai_sandbox.runtime.store import RuntimeStore as McpRegistry

from .runtime import McpRuntime, McpSettings

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
