"""One conversation with a server, from the connection to its end, inside the server's guard.

Input and output are plain: an order of texts and numbers in, JSON text or one typed error out.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import mcp_types
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from democrai_sandbox.errors.mcp import McpProtocolError, McpTimeout

from .answers import result_of, told, tool_of
from .failures import one_error
from .wire import Wire

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    from mcp.client import ClientSession


class Order(NamedTuple):
    """A request to a server, with its limits."""

    server: str
    transport: str
    url: str
    seconds: float
    """Timeout of connecting, and again of the answer."""
    tool: str
    """Tool to call; empty to list the tools."""
    arguments: str
    """JSON text."""
    answer_bytes: int
    answer_brackets: int
    tools: int
    pages: int
    depth: int
    closing_seconds: float


class _Deadline:
    """Phase of a conversation, and its deadline."""

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope
        self.phase = ""

    def begin(self, phase: str, seconds: float) -> None:
        self.phase = phase
        self._scope.deadline = anyio.current_time() + seconds


async def converse(order: Order, tls: ssl.SSLContext) -> str:
    """Return the server's answer as JSON text."""
    answer: str | None = None
    with anyio.CancelScope() as scope:
        deadline = _Deadline(scope)
        limits = {"most_bytes": order.answer_bytes, "most_brackets": order.answer_brackets}
        wire = Wire(order.server, scope, tls=tls, **limits)
        try:
            deadline.begin("connecting", order.seconds)
            async with _client(order, wire) as client:
                deadline.begin("answering", order.seconds)
                answer = await _ask(order, client.session)
                deadline.begin("closing", order.closing_seconds)
        except Exception as error:  # noqa: BLE001 - groups of them too; raised below as one error
            wire.fail(error)
    # The answer is complete: an error while closing does not change it.
    if answer is not None:
        return answer
    if wire.failure is not None:
        raise one_error(order.server, wire.failure, wire.status) from None
    raise McpTimeout(order.server, f"the server took longer than {order.seconds:g} s while {deadline.phase}")


@asynccontextmanager
async def _client(order: Order, wire: Wire) -> AsyncIterator[Client]:
    """Connect and negotiate a version. Nothing is cached, and the client offers no capabilities to the server."""
    if order.transport == "sse":
        # The older transport has the older handshake, so probing is not needed.
        async with Client(sse_client(order.url, httpx_client_factory=wire.given), mode="legacy", cache=None) as client:
            yield client
        return
    wire.opens_streams = False
    transport = streamable_http_client(order.url, http_client=wire, max_sse_event_size=order.answer_bytes)
    async with wire, Client(transport, mode="auto", cache=None) as client:
        yield client


async def _ask(order: Order, session: ClientSession) -> str:
    if not order.tool:
        return told(order.server, await _tools(order, session), depth=order.depth)
    try:
        answer = await _call(order, session)
    except MCPError as error:
        if error.code != mcp_types.HEADER_MISMATCH:
            raise
        # The tool requires arguments in headers, as its listing says: list the tools, and call again.
        await _tools(order, session)
        answer = await _call(order, session)
    return told(order.server, answer, depth=order.depth)


async def _tools(order: Order, session: ClientSession) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    for _ in range(order.pages):
        page = await session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
        for item in page.tools:
            tool = tool_of(order.server, _json(item))
            if tool["name"] in found:
                raise McpProtocolError(order.server, f"two tools have the name {tool['name']!r}")
            found[tool["name"]] = tool
        if len(found) > order.tools:
            raise McpProtocolError(order.server, f"the server has more than {order.tools} tools")
        cursor = page.next_cursor
        if cursor is None:
            return list(found.values())
    raise McpProtocolError(order.server, f"the list of tools has more than {order.pages} pages")


async def _call(order: Order, session: ClientSession) -> dict[str, Any]:
    """Call a tool.

    Not with the session's own method, which validates the result against a schema of the server: its patterns could
    block the host's loop forever.
    """
    parameters = mcp_types.CallToolRequestParams(name=order.tool, arguments=json.loads(order.arguments))
    result = await session.send_request(mcp_types.CallToolRequest(params=parameters), mcp_types.CallToolResult)
    return result_of(_json(result), result.structured_content)


def _json(model: Any) -> dict[str, Any]:
    """Return a model of the library in its wire format."""
    made: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return made
