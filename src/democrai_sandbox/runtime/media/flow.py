"""One fetch over all its hops: each hop is authorized separately and made in a guard for its own URL only."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors.media import MediaClosed, MediaRedirectRefused, MediaTooLarge
from democrai_sandbox.policy import DecisionCode

from .authority import Authority, scoped_guard
from .headers import describing
from .hops import Hop, follow
from .values import Asker, MediaHead, MediaLimits
from .wire import Bounds, Exchange

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from democrai_sandbox.guard import Guard

    from .flowlog import FlowLog

_NOT_MODIFIED = 304
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class Parts(NamedTuple):
    """Objects that all flows share."""

    authority: Authority
    limits: MediaLimits
    tls: ssl.SSLContext
    log: FlowLog


class Wish(NamedTuple):
    """Description of a fetch."""

    hop: Hop
    method: str
    headers: Mapping[str, str]
    most_bytes: int
    seconds: float


class Flow:
    """Fetches in blocking steps: ``open``, then ``read`` until it returns nothing. ``abort`` is thread-safe."""

    def __init__(self, parts: Parts, asker: Asker, wish: Wish) -> None:
        """Describe the fetch; its time runs from ``open`` on."""
        self._parts, self._asker, self._wish = parts, asker, wish
        self._exchange: Exchange | None = None
        self._guard: Guard | None = None
        self._aborted = False
        self._received = 0
        self.hops: list[str] = []
        """Requested URLs in order."""

    def open(self, extra: Mapping[str, str]) -> MediaHead:
        """Send the HTTP request, follow redirects, and return the head of the response.

        The runtime adds ``extra`` headers.
        """
        limits = self._parts.limits
        deadline = monotonic() + self._wish.seconds
        bounds = Bounds(deadline, limits.idle_seconds, limits.connect_seconds, limits.header_bytes)
        headers = {**self._wish.headers, **extra}
        hop, session_only = self._wish.hop, False
        while True:
            code = self._parts.authority.authorise(self._asker, hop)
            session_only = session_only or code is DecisionCode.SESSION_APPROVAL
            status, answered = self._ask(hop, headers, bounds)
            location = next((value for name, value in answered if name.lower() == "location"), None)
            if status not in _REDIRECTS or location is None:
                return self._begun(MediaHead(status, describing(answered), hop.url, session_only))
            self.close_exchange()
            hop = self._next(follow(hop, location))

    def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        if self._exchange is None or self._guard is None or self._aborted:
            raise MediaClosed("the fetch was canceled")
        data = self._guard.run(self._exchange.read, self._parts.limits.chunk_bytes)
        self._received += len(data)
        if self._received > self._wish.most_bytes:
            self._too_large()
        return data

    def abort(self) -> None:
        """Stop immediately, even while waiting."""
        self._aborted = True
        if self._exchange is not None:
            self._exchange.abort()

    def close(self) -> None:
        """Release everything."""
        self._aborted = True
        self.close_exchange()

    def close_exchange(self) -> None:
        """Close the connection of the current hop."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    def _ask(self, hop: Hop, headers: Mapping[str, str], bounds: Bounds) -> tuple[int, list[tuple[str, str]]]:
        self.hops.append(hop.url)
        exchange = Exchange(hop, self._wish.method, headers, bounds, self._parts.tls)
        self._exchange, self._guard = exchange, scoped_guard(self._asker, hop)
        if self._aborted:  # checked after the exchange is visible to abort()
            raise MediaClosed("the fetch was canceled")
        status, answered = self._guard.run(exchange.begin)
        self._parts.log("answer", subject=str(self._asker.subject), url=hop.url, status=status)
        return status, answered

    def _begun(self, head: MediaHead) -> MediaHead:
        """Set the header to the enforced length of the body. A different header would mislead recipients."""
        length = self._exchange.length if self._exchange else None
        if length is not None and length > self._wish.most_bytes:
            self._too_large()
        if self._wish.method != "HEAD":
            head.headers.pop("content-length", None)
            if length is not None and head.status != _NOT_MODIFIED:
                head.headers["content-length"] = str(length)
        return head

    def _next(self, hop: Hop) -> Hop:
        if hop.url in self.hops:
            raise MediaRedirectRefused("the redirects form a loop")
        if len(self.hops) > self._parts.limits.redirects:
            raise MediaRedirectRefused(f"more than {self._parts.limits.redirects} redirects")
        self._parts.log("redirect", subject=str(self._asker.subject), url=hop.url)
        return hop

    def _too_large(self) -> None:
        self.close()
        raise MediaTooLarge(f"the body is larger than {self._wish.most_bytes} bytes")
