"""Registry of MCP servers, from the configuration and the database."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Path, Request
from pydantic import Field

from democrai_sandbox.console.visitors import Visitor, holder, require_fresh, sandbox_of
from democrai_sandbox.host import configuring
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.manifests.models import DEFAULT_TIMEOUT_MS, McpTransport
from democrai_sandbox.runtime.settings import McpApproval  # noqa: TC001 - FastAPI reads the annotations
from democrai_sandbox.runtime.surroundings import serving

from .documenting import router, told
from .schemas import Answer, Order, Text

mcp = router("mcp-servers")
Reader = Annotated[Visitor, Depends(holder(Scope.SUBJECTS_READ))]
Manager = Annotated[Visitor, Depends(holder(Scope.EXTENSIONS_MANAGE))]
Name = Annotated[str, Path(min_length=1, max_length=200)]
_Url = Annotated[str, Field(max_length=2000, examples=["https://tools.example.com/mcp"])]


class McpServerEntry(Answer):
    """A registered MCP server."""

    name: Text
    transport: Text
    endpoint_url: Text
    """Without passwords and secret parameters."""
    enabled: bool
    timeout_ms: int
    source: Text
    """`configuration` or `database`. Entries of the configuration are changed in its file."""


class McpServerList(Answer):
    """The registry, by name."""

    approval: McpApproval
    """Whether the endpoint of a registered server also needs an approval."""
    items: list[McpServerEntry]


class NewMcpServer(Order):
    """A server to register."""

    name: str = Field(max_length=200)
    transport: str = Field(default=McpTransport.STREAMABLE_HTTP.value, description="`streamable_http` or `sse`.")
    endpoint_url: _Url
    enabled: bool = True
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class McpServerChanges(Order):
    """Changes; other values stay."""

    transport: str | None = None
    endpoint_url: _Url | None = None
    enabled: bool | None = None
    timeout_ms: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The given changes."""
        return {name: value for name, value in self.model_dump().items() if value is not None}


_NO_CHANGES = McpServerChanges()


@mcp.get("/mcp-servers", **told(Scope.SUBJECTS_READ))
def list_mcp_servers(request: Request, visitor: Reader) -> McpServerList:
    """List registered MCP servers, enabled or not. For administrators."""
    sandbox = sandbox_of(request)
    found = configuring.mcp_servers(sandbox, visitor.caller)
    approval = sandbox.settings.extensions.mcp_approval
    return McpServerList(approval=approval, items=[McpServerEntry.model_validate(one) for one in found])


@mcp.post("/mcp-servers", status_code=201, **told(Scope.EXTENSIONS_MANAGE, 409, body=True))
def add_mcp_server(request: Request, new: NewMcpServer, visitor: Manager) -> McpServerEntry:
    """Register a server on all nodes. Modules can use it at once, unless its endpoint needs an approval first."""
    require_fresh(request, visitor)
    with serving(visitor.caller):
        added = configuring.add_mcp_server(sandbox_of(request), new.model_dump(), visitor.caller)
    return McpServerEntry.model_validate(added)


@mcp.patch("/mcp-servers/{name}", **told(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_mcp_server(
    request: Request, name: Name, visitor: Manager, changes: McpServerChanges = _NO_CHANGES
) -> McpServerEntry:
    """Change a server. The name cannot be changed, because approvals refer to it."""
    require_fresh(request, visitor)
    with serving(visitor.caller):
        changed = configuring.change_mcp_server(sandbox_of(request), name, changes.given, visitor.caller)
    return McpServerEntry.model_validate(changed)


@mcp.delete("/mcp-servers/{name}", **told(Scope.EXTENSIONS_MANAGE, 404, 409))
def remove_mcp_server(request: Request, name: Name, visitor: Manager) -> McpServerEntry:
    """Remove a server and return it. Approvals of its endpoint remain."""
    with serving(visitor.caller):
        removed = configuring.remove_mcp_server(sandbox_of(request), name, visitor.caller)
    return McpServerEntry.model_validate(removed)
