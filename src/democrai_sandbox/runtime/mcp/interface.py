"""Interfaces that the MCP runtime needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from democrai_sandbox.manifests import McpServer
    from democrai_sandbox.policy import AccessDecision


class EndpointQuestion(NamedTuple):
    """Access question about an endpoint, with the fields of ``AccessQuestion``, which only the core can create."""

    subject: str
    subject_kind: str
    subject_chain: tuple[str, ...]
    resource_type: str
    operation: str
    target: str
    register_request: bool
    user_id: str | None
    organization_id: str | None
    session_key: str | None
    resume_action: str = ""
    resume_context: str | None = None


class EndpointDecider(Protocol):
    """Decides about endpoints; the access-policy service does."""

    def decide(self, question: EndpointQuestion, /) -> AccessDecision:
        """Return the decision about an endpoint, and file a request if wanted and none exists."""
        ...


class McpRegistry(Protocol):
    """Registry of the servers; the runtime's store is one."""

    def mcp_server(self, name: str) -> McpServer:
        """Return one entry; raises a ``LookupError`` if it is unknown."""
        ...

    def mcp_servers(self) -> tuple[McpServer, ...]:
        """Return all entries by name."""
        ...
