"""MCP services for extension code: the caller is identified by its guard, not by its arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.identity import Caller

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from democrai_sandbox.guard.views import RawView

    from .runtime import McpRuntime


def services(runtime: McpRuntime) -> Mapping[str, Callable[..., Any]]:
    """Return the services ``mcp.tools(server)`` and ``mcp.call(server, tool, arguments)`` for ``doors.install``.

    Each returns a future of plain data after the runtime is open.
    """

    def tools(view: RawView | None, server: str) -> Any:
        return runtime.promises.promise(runtime.list_tools(server, _caller(view), chain=_chain(view)))

    def call(view: RawView | None, server: str, tool: str, arguments: dict[str, Any]) -> Any:
        work = runtime.call_tool(server, tool, arguments, _caller(view), chain=_chain(view))
        return runtime.promises.promise(work)

    return {"mcp.tools": tools, "mcp.call": call}


def _caller(view: RawView | None) -> Caller:
    if view is None:
        return Caller()
    return Caller(user_id=view.user_id, organization_id=view.organization_id, session_key=view.session_key)


def _chain(view: RawView | None) -> tuple[str, ...]:
    return () if view is None else view.labels
