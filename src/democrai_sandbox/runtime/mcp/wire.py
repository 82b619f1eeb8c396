"""HTTP client of a conversation: one endpoint, no proxies, limited answers, and no lost failures.

The library swallows some failures and keeps waiting (such as a message that could not be sent over SSE), and wraps
others in groups. This client records each failure first, and ends the conversation if it cannot continue.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2

from democrai_sandbox.errors.mcp import McpProtocolError, McpRedirected

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator

    import anyio

_ERROR_STATUS = 400
_NOT_ALLOWED = 405
_PLAIN = frozenset({"", "identity"})
_ANNOUNCED: Final = re.compile(rb"event:[ ]?endpoint\r?\ndata:[ ]?([^\r\n]+)\r?\n")
_LONGEST_ANNOUNCEMENT = 8192


class Wire(httpx2.AsyncClient):
    """Client for the transports of the library. Created and used inside the guard."""

    def __init__(
        self, server: str, scope: anyio.CancelScope, *, tls: ssl.SSLContext, most_bytes: int, most_brackets: int
    ) -> None:
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
        self._server = server
        self._scope = scope
        self._left = most_bytes
        self._brackets_left = most_brackets

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
            error = McpProtocolError(self._server, "the server sent more than one call may return")
            self.fail(error)
            raise error

    def _check(self, response: httpx2.Response) -> None:
        self.status = response.status_code if response.status_code >= _ERROR_STATUS else 0
        if response.headers.get("content-encoding", "").strip().lower() not in _PLAIN:
            raise McpProtocolError(self._server, "the server compressed its answer without being asked")
        if response.has_redirect_location:
            # Within the endpoint's origin the library follows redirects, and the guard decides about the path.
            self.check_origin(response, response.headers["location"])

    def check_origin(self, response: httpx2.Response, location: str) -> None:
        """Refuse a redirect location of another origin."""
        here = response.request.url
        there = here.join(location)
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port):
            shown = there.copy_with(userinfo=b"", query=None, fragment=None)
            raise McpRedirected(self._server, f"the server redirects to {shown}, which is not its registered origin")


class _Counted(httpx2.AsyncByteStream):
    """Body of an answer, counted as it arrives."""

    def __init__(self, response: httpx2.Response, wire: Wire) -> None:
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
