"""Settings of a host for MCP servers, and limits of their answers."""

from __future__ import annotations

from dataclasses import dataclass

from democrai_sandbox.runtime.settings import McpApproval

__all__ = ["McpApproval", "McpSettings"]

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """Approval mode and limits. Exceeding a limit is an error: nothing is truncated silently."""

    approval: McpApproval = McpApproval.REGISTERED
    calls_at_once: int = 16
    """Maximum running calls of a subject to one server; the host itself has no limit."""
    answer_bytes: int = 4 * MEGABYTE
    """Maximum bytes of all answers during one call."""
    answer_brackets: int = 50_000
    """Maximum lists and objects in all answers: they need far more memory than bytes on the wire."""
    argument_bytes: int = MEGABYTE
    """Maximum size of a call's arguments as JSON."""
    tools: int = 1000
    pages: int = 100
    """Maximum pages of a list of tools."""
    depth: int = 64
    """Maximum nesting depth of lists and objects."""
    closing_seconds: float = 2.0
    """Timeout for closing the connection, after the answer has arrived."""
