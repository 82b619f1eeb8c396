"""What the MCP runtime needs of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from democrai_sandbox.manifests import McpServer
    from democrai_sandbox.policy import AccessDecision


class EndpointQuestion(NamedTuple):
    """What is asked about an endpoint, in the words of the guard's ``AccessQuestion``, which only the core makes."""

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
    """Answers about endpoints; the access-policy service does."""

    def decide(self, question: EndpointQuestion, /) -> AccessDecision:
        """Return what was decided about it, and put a request down if that is asked for and nothing was."""
        ...


class McpRegistry(Protocol):
    """Where the servers are registered; the runtime's store is one."""

    def mcp_server(self, name: str) -> McpServer:
        """Return one entry; raises a ``LookupError`` when there is none."""
        ...

    def mcp_servers(self) -> tuple[McpServer, ...]:
        """Return all entries by name."""
        ...
