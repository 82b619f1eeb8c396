"""A node, by its HTTP API: one request at a time, with the standard library alone."""

from __future__ import annotations

import http.client
import json
from contextlib import contextmanager
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from democrai_sandbox.errors import CommandMisused, NodeRefused, NodeUnreachable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_BASE = "/api/v1"
_SECONDS = 30.0
_PAGE = 200
_REFUSED = 400


class Node:
    """Asks one node, as the owner of a token. A refusal is a ``NodeRefused``, no answer a ``NodeUnreachable``."""

    def __init__(self, url: str, token: str) -> None:
        """Take the address of the console and a token; nothing is asked yet."""
        self.url = url.rstrip("/")
        self._token = token
        self._place = _place(self.url)

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return what the API has there. Values that are None or empty are left out, lists are repeated."""
        return self._asked("GET", path + _query(query))

    def post(self, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Have something done."""
        return self._asked("POST", path, content or {})

    def items(self, path: str, most: int = 0, **query: Any) -> Iterator[dict[str, Any]]:
        """Go through a list page by page: all of it, or the first so many."""
        after, left = "", most
        while True:
            limit = min(left, _PAGE) if most else _PAGE
            found = self.get(path, **query, after=after, limit=limit)
            yield from found["items"]
            after, left = found["next"], left - limit
            if not after or (most and left <= 0):
                return

    def lines(self, path: str, **query: Any) -> Iterator[str]:
        """Go through an answer that is text, line by line, as it comes."""
        with self._answer("GET", path + _query(query)) as answer, _reaching(self.url):
            for line in answer:
                yield line.decode().rstrip("\r\n")

    def _asked(self, method: str, path: str, content: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with self._answer(method, path, content) as answer, _reaching(self.url):
            return _object(answer.read(), self.url)

    @contextmanager
    def _answer(
        self, method: str, path: str, content: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json", "Connection": "close"}
        body = None if content is None else json.dumps(content)
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            with _reaching(self.url):
                connection.request(method, f"{self._place.path}{_BASE}{path}", body, headers)
                answer = connection.getresponse()
                if answer.status >= _REFUSED:
                    raise NodeRefused(answer.status, _object(answer.read(), self.url))
            yield answer
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._place.scheme == "https" else http.client.HTTPConnection
        return kind(self._place.hostname or "", self._place.port, timeout=_SECONDS)


def below(*parts: str) -> str:
    """Return a path of the API whose parts may hold anything."""
    return "".join(f"/{quote(part, safe='')}" for part in parts)


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    """Say of everything that can happen to a connection that the node cannot be reached, and why."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, NodeRefused):
            raise
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise NodeUnreachable(
            f"{url} does not answer as a node: {reason}", fix="see that it runs, or name another one with --url"
        ) from None


def _object(body: bytes, url: str) -> dict[str, Any]:
    try:
        found = json.loads(body) if body else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NodeUnreachable(f"what answers at {url} is no node", fix="name another one with --url")
    return found


def _query(query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value not in (None, "", [], ())}
    return f"?{urlencode(given, doseq=True)}" if given else ""


def _place(url: str) -> Any:
    """Take an address apart; one over which others could read the token is refused."""
    try:
        place = urlsplit(url)
        _ = place.port
    except ValueError as error:
        raise CommandMisused(f"{url!r} is no address of a node: {error}", fix="write http://host:port") from None
    if place.scheme not in {"http", "https"} or not place.hostname or place.query or place.fragment or place.username:
        raise CommandMisused(f"{url!r} is no address of a node", fix="write http://host:port or https://host")
    if place.scheme == "http" and not _is_here(place.hostname):
        raise CommandMisused(
            f"{url} is not encrypted, and a token sent there can be read on the way", fix="use https, or a tunnel"
        )
    return place


def _is_here(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
