"""One conversation with a server, inside the server's guard: plain texts and numbers in, JSON text or one error out."""

from __future__ import annotations

import json
import re
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import anyio
import httpx2
import mcp_types
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from democrai_sandbox.errors import services as errors
from democrai_sandbox.policy import SandboxError
from democrai_sandbox.policy.text import invisible_character

from .runtime import LONGEST_TOOL_NAME, McpSettings

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Iterator

    from mcp.client import ClientSession

_MOST_CAUSES = 64
_GATEWAY: Final = frozenset({502, 503, 504})
# The library also raises these itself: when a connection ends, and when it could not parse an answer.
_NOT_THE_TOOLS = frozenset(
    {mcp_types.CONNECTION_CLOSED, mcp_types.PARSE_ERROR, mcp_types.INTERNAL_ERROR, mcp_types.INVALID_REQUEST}
)


def one_error(server: str, error: BaseException, status: int = 0) -> SandboxError:
    """Return the error to raise; ``status`` is the last HTTP error status.

    Errors of the sandbox are returned as they are, a denial first; all others are converted to text.
    """
    leaves = list(_leaves(error))
    for kind in (PermissionError, SandboxError):
        for leaf in leaves:
            if isinstance(leaf, SandboxError) and isinstance(leaf, kind):
                # Without traceback and causes: the frames of the library reference the whole conversation.
                leaf.__cause__ = leaf.__context__ = None
                return leaf.with_traceback(None)
    for leaf in leaves:
        if found := _known(server, leaf, status):
            return found
    return errors.McpProtocolError(server, "; ".join(f"{type(leaf).__name__}: {leaf}" for leaf in leaves))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the members of groups, and the causes of errors, the outermost first."""
    waiting, seen = [error], 0
    while waiting and seen < _MOST_CAUSES:
        found = waiting.pop(0)
        seen += 1
        if isinstance(found, BaseExceptionGroup):
            waiting += found.exceptions
            continue
        yield found
        waiting += filter(None, (found.__cause__, found.__context__))


def _known(server: str, error: BaseException, status: int) -> errors.McpError | None:
    if isinstance(error, MCPError):
        return _said(server, error, status)
    if isinstance(error, httpx2.HTTPStatusError):
        return _refused(server, error.response.status_code)
    if isinstance(error, httpx2.NetworkError | httpx2.TimeoutException) or _is_cut(error):
        return errors.McpUnreachable(server, str(error) or "the connection failed")
    if isinstance(error, httpx2.HTTPError | httpx2.InvalidURL):
        return errors.McpProtocolError(server, str(error))
    if isinstance(error, ValidationError):
        return errors.McpProtocolError(server, f"the answer is not valid MCP: {_problems(error)}")
    return None


def _is_cut(error: BaseException) -> bool:
    """Return whether a connection ended too early, as opposed to one that did not carry HTTP."""
    text = str(error).lower() if isinstance(error, httpx2.RemoteProtocolError) else ""
    return "disconnected" in text or "closed connection" in text


def _said(server: str, error: MCPError, status: int) -> errors.McpError:
    """Return the error for a JSON-RPC error. An HTTP status is more specific than the library's code."""
    if status and error.code in _NOT_THE_TOOLS | {mcp_types.METHOD_NOT_FOUND}:
        return _refused(server, status)
    if error.code == mcp_types.CONNECTION_CLOSED:
        return errors.McpUnreachable(server, f"the connection ended before the answer: {error.message}")
    if error.code in _NOT_THE_TOOLS:
        return errors.McpProtocolError(server, error.message)
    return errors.McpToolFailed(server, f"{error.message} ({error.code})")


def _refused(server: str, status: int) -> errors.McpError:
    kind = errors.McpUnreachable if status in _GATEWAY else errors.McpProtocolError
    return kind(server, f"the server answered with HTTP status {status}")


def _problems(error: ValidationError) -> str:
    """Return the locations of problems in an answer, without its values."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[:3]
    return "; ".join(f"{'/'.join(map(str, item['loc']))}: {item['msg']}" for item in found)


_ERROR_STATUS = 400
_NOT_ALLOWED = 405
_PLAIN = frozenset({"", "identity"})
_ANNOUNCED: Final = re.compile(rb"event:[ ]?endpoint\r?\ndata:[ ]?([^\r\n]+)\r?\n")
_LONGEST_ANNOUNCEMENT = 8192


class McpHttpClient(httpx2.AsyncClient):
    """Client for the transports of the library. Created and used inside the guard.

    Only text leaves it, so no object that was made from a server's data reaches the host.

    The ``mcp`` library swallows some failures and keeps waiting (such as a message that could not be sent over SSE),
    and wraps others in groups. This client records each failure first, and ends the conversation if it cannot continue.
    """

    def __init__(self, request: ConversationRequest, scope: anyio.CancelScope, tls: ssl.SSLContext) -> None:
        """Take the scope that ends the conversation, and a TLS context: the guard cannot read certificate files."""
        # No proxies from the environment: traffic would leave through another host than the registered one. No
        # compression, so that the counted size is the size in memory. Timeouts belong to the conversation.
        super().__init__(
            transport=httpx2.AsyncHTTPTransport(verify=tls, trust_env=False),
            trust_env=False,
            timeout=None,
            headers={"accept-encoding": "identity"},
        )
        self.failure: BaseException | None = None
        self.status = 0
        """HTTP status of the last answer if it was an error; otherwise 0."""
        self.opens_streams = True
        """Whether to open a stream for messages that the server initiates; only SSE needs it."""
        self._server = request.server
        self._scope = scope
        self._left = request.limits.answer_bytes
        self._brackets_left = request.limits.answer_brackets

    def given(self, *_: Any, **__: Any) -> Self:
        """Return this client where the library would create one, and ignore its settings."""
        return self

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send one HTTP request; all redirects, streams and messages of the library pass through here."""
        if request.method == "GET" and not self.opens_streams:
            return httpx2.Response(_NOT_ALLOWED, request=request)
        try:
            response = await super().send(request, stream=True, **options)
            self._check(response)
        except Exception as error:
            self.fail(error)
            raise
        response.stream = _Counted(response, self)
        if not stream:
            await response.aread()
        return response

    def fail(self, error: BaseException) -> None:
        """Record the first failure, and end the conversation."""
        if self.failure is None:
            self.failure = error
        self._scope.cancel()

    def take(self, chunk: bytes) -> None:
        """Count received bytes before they are parsed; raise if they exceed a limit.

        Brackets are counted too, because the three bytes of an empty list need a hundred in memory.
        """
        self._left -= len(chunk)
        self._brackets_left -= chunk.count(b"[") + chunk.count(b"{")
        if self._left < 0 or self._brackets_left < 0:
            error = errors.McpProtocolError(self._server, "the server sent more than one call may return")
            self.fail(error)
            raise error

    def _check(self, response: httpx2.Response) -> None:
        self.status = response.status_code if response.status_code >= _ERROR_STATUS else 0
        if response.headers.get("content-encoding", "").strip().lower() not in _PLAIN:
            raise errors.McpProtocolError(self._server, "the server compressed its answer without being asked")
        if response.has_redirect_location:
            # Within the endpoint's origin the library follows redirects, and the guard decides about the path.
            self.check_origin(response, response.headers["location"])

    def check_origin(self, response: httpx2.Response, location: str) -> None:
        """Refuse a redirect location of another origin."""
        here = response.request.url
        there = here.join(location)
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port):
            shown = there.copy_with(userinfo=b"", query=None, fragment=None)
            raise errors.McpRedirected(
                self._server, f"the server redirects to {shown}, which is not its registered origin"
            )


class _Counted(httpx2.AsyncByteStream):
    """Body of an answer, counted as it arrives."""

    def __init__(self, response: httpx2.Response, wire: McpHttpClient) -> None:
        self._response = response
        self._body: Any = response.stream
        self._wire = wire
        self._head: bytes | None = b"" if response.request.method == "GET" else None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._body:
            self._wire.take(chunk)
            if self._head is not None:
                self._look_for_endpoint(chunk)
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()

    def _look_for_endpoint(self, chunk: bytes) -> None:
        """Fail immediately when SSE announces a message path of another origin.

        The library refuses it as well, but silently, and the conversation would wait for its deadline.
        """
        self._head = (self._head or b"") + chunk
        if found := _ANNOUNCED.search(self._head):
            try:
                self._wire.check_origin(self._response, found[1].decode("utf-8", "replace"))
            except Exception as error:
                self._wire.fail(error)
                raise
        if found or len(self._head) > _LONGEST_ANNOUNCEMENT:
            self._head = None


class ConversationRequest(NamedTuple):
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
    limits: McpSettings


async def converse(request: ConversationRequest, tls: ssl.SSLContext) -> str:
    """Return the server's answer as JSON text."""
    answer: str | None = None
    phase = ""
    with anyio.CancelScope() as scope:
        wire = McpHttpClient(request, scope, tls)
        try:
            phase, scope.deadline = "connecting", anyio.current_time() + request.seconds
            async with _client(request, wire) as client:
                phase, scope.deadline = "answering", anyio.current_time() + request.seconds
                answer = await _ask(request, client.session)
                phase, scope.deadline = "closing", anyio.current_time() + request.limits.closing_seconds
        except Exception as error:  # noqa: BLE001 - groups of them too; raised below as one error
            wire.fail(error)
    # The answer is complete: an error while closing does not change it.
    if answer is not None:
        return answer
    if wire.failure is not None:
        raise one_error(request.server, wire.failure, wire.status) from None
    raise errors.McpTimeout(request.server, f"the server took longer than {request.seconds:g} s while {phase}")


@asynccontextmanager
async def _client(request: ConversationRequest, wire: McpHttpClient) -> AsyncIterator[Client]:
    """Connect and negotiate a version. Nothing is cached, and the client offers no capabilities to the server."""
    if request.transport == "sse":
        # The older transport has the older handshake, so probing is not needed.
        async with Client(
            sse_client(request.url, httpx_client_factory=wire.given), mode="legacy", cache=None
        ) as client:
            yield client
        return
    wire.opens_streams = False
    transport = streamable_http_client(request.url, http_client=wire, max_sse_event_size=request.limits.answer_bytes)
    async with wire, Client(transport, mode="auto", cache=None) as client:
        yield client


async def _ask(request: ConversationRequest, session: ClientSession) -> str:
    if not request.tool:
        return told(request.server, await _tools(request, session), depth=request.limits.depth)
    try:
        answer = await _call(request, session)
    except MCPError as error:
        if error.code != mcp_types.HEADER_MISMATCH:
            raise
        # The tool requires arguments in headers, as its listing says: list the tools, and call again.
        await _tools(request, session)
        answer = await _call(request, session)
    return told(request.server, answer, depth=request.limits.depth)


async def _tools(request: ConversationRequest, session: ClientSession) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    cursor: str | None = None
    for _ in range(request.limits.pages):
        page = await session.list_tools(params=mcp_types.PaginatedRequestParams(cursor=cursor))
        for item in page.tools:
            tool = tool_of(request.server, _json(item))
            if tool["name"] in found:
                raise errors.McpProtocolError(request.server, f"two tools have the name {tool['name']!r}")
            found[tool["name"]] = tool
        if len(found) > request.limits.tools:
            raise errors.McpProtocolError(request.server, f"the server has more than {request.limits.tools} tools")
        cursor = page.next_cursor
        if cursor is None:
            return list(found.values())
    raise errors.McpProtocolError(request.server, f"the list of tools has more than {request.limits.pages} pages")


async def _call(request: ConversationRequest, session: ClientSession) -> dict[str, Any]:
    """Call a tool.

    Not with the session's own method, which validates the result against a schema of the server: its patterns could
    block the host's loop forever.
    """
    parameters = mcp_types.CallToolRequestParams(name=request.tool, arguments=json.loads(request.arguments))
    result = await session.send_request(mcp_types.CallToolRequest(params=parameters), mcp_types.CallToolResult)
    return result_of(_json(result), result.structured_content)


def _json(model: Any) -> dict[str, Any]:
    made: dict[str, Any] = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return made


_TOOL_KEYS = {
    "name": "name",
    "title": "title",
    "description": "description",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
    "annotations": "annotations",
}


def tool_of(server: str, wire: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with our field names. Icons and metadata are omitted, because their addresses are never used."""
    check_tool_name(server, wire["name"])
    return {ours: wire[theirs] for theirs, ours in _TOOL_KEYS.items() if wire.get(theirs) is not None}


def check_tool_name(server: str, name: str) -> None:
    """Refuse a name that could be confused with another one, in a log or by a model."""
    if not 0 < len(name) <= LONGEST_TOOL_NAME or invisible_character(name):
        raise errors.McpProtocolError(server, f"a tool has the invalid name {name[:LONGEST_TOOL_NAME]!r}")


def result_of(wire: dict[str, Any], structured: Any) -> dict[str, Any]:
    """Return the result of a call: ``content``, a list of blocks as in MCP, and ``structured`` data if any.

    The structured part is used as parsed, because the library would encode NaN as null.
    """
    found: dict[str, Any] = {"is_error": wire.get("isError") is True, "content": wire.get("content", [])}
    if structured is not None:
        found["structured"] = structured
    return found


def told(server: str, value: Any, *, depth: int) -> str:
    """Return plain data as JSON text; refuse values that are not JSON, and values that are nested too deeply."""
    if _depth(value) > depth:
        raise errors.McpProtocolError(server, f"the answer is nested deeper than {depth} levels")
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise errors.McpProtocolError(server, f"the answer is not valid JSON: {error}") from None


def _depth(value: Any) -> int:
    """Return the nesting depth of lists and objects; iterative, because deep values exceed the recursion limit."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth
