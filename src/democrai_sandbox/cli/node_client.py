"""HTTP client for the API of a node, with the standard library only, and a deadline also for slow senders."""

from __future__ import annotations

import http.client
import io
import json
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode, urlsplit

from democrai_sandbox.errors import CommandMisused, NodeRefused, NodeUnreachable

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping


class TimedAnswer(http.client.HTTPResponse):
    """HTTP response that raises ``TimeoutError`` after its deadline, or after a pause that is too long."""

    def __init__(self, sock: socket.socket, *rest: Any, longest: float, **named: Any) -> None:
        """Read from a socket, whose timeout is the longest pause."""
        super().__init__(sock, *rest, **named)
        self._timed = _TimedReader(sock, self.fp.detach(), longest)
        self.fp = io.BufferedReader(self._timed)

    def prolong(self) -> None:
        """Restart the deadline."""
        self._timed.prolong()


class _TimedReader(io.RawIOBase):
    """Reader of a socket with a deadline."""

    def __init__(self, sock: socket.socket, stream: io.RawIOBase, longest: float) -> None:
        self._sock = sock
        self._stream = stream
        self._longest = longest
        self._pause = sock.gettimeout() or longest
        self.prolong()

    def prolong(self) -> None:
        self._until = monotonic() + self._longest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(min(left, self._pause))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


_BASE = "/api/v1"
_LARGEST = 64 * 1024 * 1024
_AT_ONCE = 64 * 1024
_LONGEST_LINE = 16 * 1024 * 1024
_LINES = frozenset({"application/x-ndjson", "text/csv"})
_MARK = "X-Request-Id"
"""Header in every answer of a node, and rarely in answers of proxies and other programs."""
_PAGE = 200
_MOST_PAGES = 5000
_FINE, _REFUSED = range(200, 300), 400


class NodeClient:
    """Client of one node with a token. A refusal raises ``NodeRefused``, a missing answer ``NodeUnreachable``."""

    patience = 30.0
    """Timeout in seconds between two parts of an answer."""
    longest = 120.0
    """Timeout in seconds for a whole answer, or for each line of a text."""

    def __init__(self, url: str, source: str = "--url", *, token: str) -> None:
        """Take the address of the console, its origin, and a token; no connection is made yet."""
        self.url = url.rstrip("/")
        self._source = source
        self._token = token
        self._place = _place(self.url, source)
        self.has_answered = False

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Send a GET. Empty parameters are omitted, lists are repeated."""
        return self._asked("GET", path + _query(query))

    def post(self, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a POST."""
        return self._asked("POST", path, content or {})

    def patch(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Send a PATCH."""
        return self._asked("PATCH", path, content)

    def delete(self, path: str) -> dict[str, Any]:
        """Send a DELETE; return the removed object."""
        return self._asked("DELETE", path)

    def items(self, path: str, most: int = 0, **query: Any) -> Iterator[dict[str, Any]]:
        """Yield a list page by page, up to a limit."""
        after, left = "", most
        for _ in range(_MOST_PAGES):
            limit = min(left, _PAGE) if most else _PAGE
            found = self.get(path, **query, after=after, limit=limit)
            yield from found["items"]
            before, after, left = after, found["next"], left - limit
            if not after or (most and left <= 0):
                return
            if after == before or not found["items"]:
                break
        raise ValueError("the list does not end")

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """Yield the lines of a text answer as they arrive, with their line ends."""
        with self._answer("GET", path + _query(query)) as answer, self._reaching():
            if answer.headers.get_content_type() not in _LINES:
                raise self._no_node()
            yield from _lines(answer)

    def _asked(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._answer(method, path, content) as answer, self._reaching():
            return self._object(answer)

    @contextmanager
    def _answer(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> Iterator[TimedAnswer]:
        headers = {"Accept": "application/json", "Connection": "close"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        body = None if content is None else json.dumps(content)
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            with self._reaching():
                connection.request(method, f"{self._place.path}{_BASE}{path}", body, headers)
                answer = cast("TimedAnswer", connection.getresponse())
                if _MARK not in answer.headers or not (answer.status in _FINE or answer.status >= _REFUSED):
                    raise self._no_node()
                if answer.status >= _REFUSED:
                    raise NodeRefused(answer.status, self._object(answer))
            yield answer
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._place.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._place.hostname or "", self._place.port, timeout=self.patience)
        connection.response_class = partial(TimedAnswer, longest=self.longest)  # type: ignore[assignment] # it makes one
        return connection

    def _object(self, answer: http.client.HTTPResponse) -> dict[str, Any]:
        body = answer.read(_LARGEST + 1)
        if len(body) <= _LARGEST:
            _must_be_whole(answer)
        try:
            found = json.loads(body) if len(body) <= _LARGEST else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._no_node()
        self.has_answered = True
        return found

    def misread(self, error: Exception) -> NodeUnreachable:
        """Return the error for an unexpected answer, from another version or another program."""
        return NodeUnreachable(
            f"{self.url} does not answer like a node of this version: {type(error).__name__}: {error} "
            f"(that address is from {self._source})",
            fix="use the command line of the node's version, or name another node with --url",
        )

    def _no_node(self) -> NodeUnreachable:
        return NodeUnreachable(
            f"the program at {self.url} is not a node (that address is from {self._source})",
            fix="name another node with --url",
        )

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Raise ``NodeUnreachable`` with the reason for every connection error."""
        try:
            yield
        except NodeRefused:
            raise
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise NodeUnreachable(
                f"{self.url} does not answer as a node: {_reason(error)} (that address is from {self._source})",
                fix="start it, or name another node with --url",
            ) from None


def below(*parts: str) -> str:
    """Return a path of the API, with quoted parts."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _lines(answer: TimedAnswer) -> Iterator[bytes]:
    """Split an answer into lines. ``readline`` would accept a truncated answer."""
    begun: list[bytes] = []  # parts of an incomplete line, joined once
    while part := answer.read1(_AT_ONCE):
        *whole, left = part.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun = []
        begun.append(left)
        if sum(map(len, begun)) > _LONGEST_LINE:
            raise http.client.LineTooLong("line")
        for line in whole:
            yield line + b"\n"
            answer.prolong()
    _must_be_whole(answer)
    if left := b"".join(begun):
        yield left


def _must_be_whole(answer: http.client.HTTPResponse) -> None:
    if answer.length:  # announced, but missing
        raise http.client.IncompleteRead(b"", answer.length)


def _reason(error: Exception) -> str:
    """Return the reason of a connection error, without data from the other side."""
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected):
        return "the connection ended in the middle of an answer"
    if isinstance(error, http.client.HTTPException | UnicodeError):
        return "the answer is not valid HTTP"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _place(url: str, source: str) -> Any:
    """Parse an address; refuse one that would send the token unencrypted."""
    try:
        place = urlsplit(url)
        _ = place.port
    except ValueError as error:
        shown = url.rpartition("@")[2]  # the part before the host may be a password
        raise CommandMisused(
            f"{source}: {shown!r} is not a valid address: {error}", fix="write http://host:port"
        ) from None
    host = place.hostname or ""
    is_more = place.query or place.fragment or place.username is not None
    if place.scheme not in {"http", "https"} or not host or is_more:
        # The part before the host may be a password.
        shown = f"{place.scheme}://***@{host}" if place.username is not None else url
        raise CommandMisused(
            f"{source}: {shown!r} is not the address of a node", fix="write http://host:port or https://host"
        )
    if place.scheme == "http" and not _is_here(host):
        raise CommandMisused(
            f"{source}: {url!r} is not encrypted, so others could read the token",
            fix="use https, or a tunnel",
        )
    return place


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
