"""The HTTP client of a conversation: one endpoint, no proxies, bounded answers, and no failure that gets lost.

The library swallows some failures and waits on (a message that could not be sent over SSE), and wraps others in
groups. Each passes here first: it is noted, and what the conversation cannot go on after ends it at once.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2

from .errors import McpProtocolError, McpRedirected

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
    """A client that the transports of the library use. Created and used inside the guard."""

    def __init__(
        self, server: str, scope: anyio.CancelScope, *, tls: ssl.SSLContext, most_bytes: int, most_brackets: int
    ) -> None:
        """Take the scope that ends the conversation, and a TLS context, whose certificates are files."""
        # Not the environment's proxies: the traffic of a server would leave by another host than the registered one.
        # Nothing compressed, so that what is counted is what it becomes in memory. Deadlines are the conversation's.
        super().__init__(
            transport=httpx2.AsyncHTTPTransport(verify=tls, trust_env=False),
            trust_env=False,
            timeout=None,
            headers={"accept-encoding": "identity"},
        )
        self.failure: BaseException | None = None
        self.status = 0
        """The status of HTTP when the last answer was one of an error."""
        self.opens_streams = True
        """Whether a stream for messages of the server's own accord is opened: only SSE needs it."""
        self._server = server
        self._scope = scope
        self._left = most_bytes
        self._brackets_left = most_brackets

    def given(self, *_: Any, **__: Any) -> Self:
        """Return this client, where the library wants to make one; what it would set is settled."""
        return self

    async def send(self, request: httpx2.Request, *, stream: bool = False, **options: Any) -> httpx2.Response:
        """Send one request; the library's redirects, streams and messages all come through here."""
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
        """Note the first failure, and end the conversation."""
        if self.failure is None:
            self.failure = error
        self._scope.cancel()

    def take(self, chunk: bytes) -> None:
        """Count what was received, before anybody parses it; raise when it is more than is taken.

        Brackets are counted besides bytes: three bytes of an empty list become a hundred in memory, many times over.
        """
        self._left -= len(chunk)
        self._brackets_left -= chunk.count(b"[") + chunk.count(b"{")
        if self._left < 0 or self._brackets_left < 0:
            error = McpProtocolError(self._server, "the server sends more than is taken in one call")
            self.fail(error)
            raise error

    def _check(self, response: httpx2.Response) -> None:
        self.status = response.status_code if response.status_code >= _ERROR_STATUS else 0
        if response.headers.get("content-encoding", "").strip().lower() not in _PLAIN:
            raise McpProtocolError(self._server, "the server compresses its answer, which was not asked for")
        if response.has_redirect_location:
            # Within the endpoint's origin, the library follows, and the guard decides about the path.
            self.check_origin(response, response.headers["location"])

    def check_origin(self, response: httpx2.Response, location: str) -> None:
        """Refuse a location that an answer leads to when it is of another origin."""
        here = response.request.url
        there = here.join(location)
        if (here.scheme, here.host, here.port) != (there.scheme, there.host, there.port):
            shown = there.copy_with(userinfo=b"", query=None, fragment=None)
            raise McpRedirected(self._server, f"the server redirects to {shown}, which is not its registered origin")


class _Counted(httpx2.AsyncByteStream):
    """The body of an answer, counted as it comes."""

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
        """Tell at once when SSE announces a path for messages of another origin.

        The library refuses that as well, but then nobody hears of it, and the conversation waits for its deadline.
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
