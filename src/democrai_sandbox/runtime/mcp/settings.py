"""What a host settles about MCP servers, and how much of what they say is taken."""

from __future__ import annotations

from dataclasses import dataclass

from democrai_sandbox.runtime.settings import McpApproval

__all__ = ["McpApproval", "McpSettings"]

MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """When servers are contacted, and how much is taken of them. More is an error: nothing is cut off silently."""

    approval: McpApproval = McpApproval.REGISTERED
    calls_at_once: int = 16
    """How many calls of one server a subject may have under way; the host itself has no limit."""
    answer_bytes: int = 4 * MEGABYTE
    """All that a server sends during one call, in every answer together."""
    answer_brackets: int = 50_000
    """How many lists and objects may begin in all of that: they take far more room in memory than on the wire."""
    argument_bytes: int = MEGABYTE
    """The arguments of a call, as JSON."""
    tools: int = 1000
    pages: int = 100
    """In how many pieces a list of tools may come."""
    depth: int = 64
    """How deep lists and objects may be nested."""
    closing_seconds: float = 2.0
    """How long a server may take to take leave of; the answer is there by then."""
