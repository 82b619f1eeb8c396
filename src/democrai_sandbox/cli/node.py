"""A node, by its HTTP API: one request at a time, with the standard library alone."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote, urlencode, urlsplit

from democrai_sandbox.errors import CommandMisused, NodeRefused, NodeUnreachable

from .patience import TimedAnswer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BASE = "/api/v1"
_LARGEST = 64 * 1024 * 1024
_AT_ONCE = 64 * 1024
_LONGEST_LINE = 16 * 1024 * 1024
_LINES = frozenset({"application/x-ndjson", "text/csv"})
_MARK = "X-Request-Id"
"""Every answer of a node has it; pages of proxies and of other programs seldom do."""
_PAGE = 200
_MOST_PAGES = 5000
_FINE, _REFUSED = range(200, 300), 400


class Node:
    """Asks one node, as the owner of a token. A refusal is a ``NodeRefused``, no answer a ``NodeUnreachable``."""

    patience = 30.0
    """Seconds without a word from the node before it counts as gone."""
    longest = 120.0
    """Seconds for an answer as a whole, or for each line of one that is text: one that drips has no end."""

    def __init__(self, url: str, source: str = "--url", *, token: str) -> None:
        """Take the address of the console, what it was found by, and a token; nothing is asked yet."""
        self.url = url.rstrip("/")
        self._source = source
        self._token = token
        self._place = _place(self.url, source)
        self.has_answered = False

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return what the API has there. Values that are None or empty are left out, lists are repeated."""
        return self._asked("GET", path + _query(query))

    def post(self, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Have something done."""
        return self._asked("POST", path, content or {})

    def patch(self, path: str, content: Mapping[str, Any]) -> dict[str, Any]:
        """Have something changed."""
        return self._asked("PATCH", path, content)

    def delete(self, path: str) -> dict[str, Any]:
        """Have something removed; return what it was."""
        return self._asked("DELETE", path)

    def items(self, path: str, most: int = 0, **query: Any) -> Iterator[dict[str, Any]]:
        """Go through a list page by page: all of it, or the first so many."""
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
        raise ValueError("a list that does not come to its end")

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """Go through an answer that is text, line by line with their ends, as it comes."""
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
        """Return what is said of answers that are not as expected: of another version, or no node's at all."""
        return NodeUnreachable(
            f"what {self.url} answers is not what a node of this version says: {type(error).__name__}: {error} "
            f"(that address is from {self._source})",
            fix="use the command line of the node's own version, or name another one with --url",
        )

    def _no_node(self) -> NodeUnreachable:
        return NodeUnreachable(
            f"what answers at {self.url} is no node (that address is from {self._source})",
            fix="name another one with --url",
        )

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        """Say of everything that can happen to a connection that the node cannot be reached, and why."""
        try:
            yield
        except NodeRefused:
            raise
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise NodeUnreachable(
                f"{self.url} does not answer as a node: {_reason(error)} (that address is from {self._source})",
                fix="see that it runs, or name another one with --url",
            ) from None


def below(*parts: str) -> str:
    """Return a path of the API whose parts may hold anything."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


def _lines(answer: TimedAnswer) -> Iterator[bytes]:
    """Take an answer apart. ``readline`` would take one that breaks off for one that is complete."""
    begun: list[bytes] = []  # parts of a line without its end: put together once, not with each part
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
    if answer.length:  # still to come, and it does not
        raise http.client.IncompleteRead(b"", answer.length)


def _reason(error: Exception) -> str:
    """Say in a few words what happened to a connection; what the other side sent is not repeated."""
    if isinstance(error, TimeoutError):
        return "it takes too long"
    if isinstance(error, http.client.IncompleteRead | http.client.RemoteDisconnected):
        return "it ended in the middle of an answer"
    if isinstance(error, http.client.HTTPException | UnicodeError):
        return "that is not HTTP as a node speaks it"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _place(url: str, source: str) -> Any:
    """Take an address apart; one over which others could read the token is refused."""
    try:
        place = urlsplit(url)
        _ = place.port
    except ValueError as error:
        shown = url.rpartition("@")[2]  # whatever stands before the host may be a password
        raise CommandMisused(f"{source}: {shown!r} is no address: {error}", fix="write http://host:port") from None
    host = place.hostname or ""
    is_more = place.query or place.fragment or place.username is not None
    if place.scheme not in {"http", "https"} or not host or is_more:
        # Whatever stands before the host may be a password.
        shown = f"{place.scheme}://***@{host}" if place.username is not None else url
        raise CommandMisused(
            f"{source}: {shown!r} is no address of a node", fix="write http://host:port or https://host"
        )
    if place.scheme == "http" and not _is_here(host):
        raise CommandMisused(
            f"{source}: {url!r} is not encrypted, and a token sent there can be read on the way",
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
