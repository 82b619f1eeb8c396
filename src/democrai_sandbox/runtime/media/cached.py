"""Fetch that reads the module's cache first, and stores cacheable responses."""

from __future__ import annotations

from time import time

from democrai_sandbox.errors import NetworkDenied
from democrai_sandbox.policy import DecisionCode

from .cache import Entry, MediaCache
from .flow import Flow, Parts, Wish
from .freshness import lifetime
from .headers import CONDITIONS
from .hops import read_url
from .values import Asker, MediaHead

_COMPLETE = 200
_NOT_MODIFIED = 304
_ANY = "*/*"
_TAGS = "if-none-match"


class CachedFlow:
    """Has the same steps as a ``Flow``. Each URL is authorized as if it were fetched, also for cached responses."""

    def __init__(self, parts: Parts, asker: Asker, wish: Wish, cache: MediaCache | None) -> None:
        """Use the cache only for HTTP requests of the whole content."""
        whole = wish.method == "GET" and not wish.headers.keys() & (CONDITIONS - {_TAGS})
        self._parts, self._asker, self._wish = parts, asker, wish
        self._cache = cache if whole else None
        self._flow = Flow(parts, asker, wish)
        self._ready: memoryview | None = None
        self._collected: bytearray | None = None
        self._head: MediaHead | None = None
        self.from_cache = False

    def open(self) -> MediaHead:
        """Return the head of the response, from the cache or from the server."""
        kept = self._kept()
        if kept is not None and kept.fresh_until > time():
            return self._serve(kept)
        # A conditional HTTP request of the caller gets the server's own answer.
        questions = _questions(kept) if kept and _TAGS not in self._wish.headers else {}
        head = self._flow.open(questions)
        if kept is not None and questions and head.status == _NOT_MODIFIED:
            return self._confirm(kept, head)
        self._head = head
        if self._may_keep(head):
            self._collected = bytearray()
        return head

    def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        if self._ready is not None:
            size = self._parts.limits.chunk_bytes
            data, self._ready = bytes(self._ready[:size]), self._ready[size:]
            return data
        data = self._flow.read()
        self._collect(data)
        return data

    def abort(self) -> None:
        """Stop immediately, even while waiting."""
        self._flow.abort()

    def close(self) -> None:
        """Release the connection and all buffers."""
        self._ready = self._collected = None
        self._flow.close()

    def _kept(self) -> Entry | None:
        """Return a cached entry that is still permitted; never one that is permitted only for this session."""
        if self._cache is None:
            return None
        first = self._parts.authority.authorise(self._asker, self._wish.hop)
        if first is DecisionCode.SESSION_APPROVAL:
            self._cache = None
            return None
        entry = self._cache.load(self._wish.hop.url, self._accept)
        return entry if entry is not None and self._is_permitted(entry) else None

    def _is_permitted(self, entry: Entry) -> bool:
        if len(entry.body) > self._wish.most_bytes:
            return False
        try:
            codes = [self._parts.authority.authorise(self._asker, read_url(url)) for url in entry.hops[1:]]
        except NetworkDenied:
            return False  # ask the server, which may redirect elsewhere now
        return DecisionCode.SESSION_APPROVAL not in codes

    def _serve(self, entry: Entry) -> MediaHead:
        self._parts.log("cached", subject=str(self._asker.subject), url=entry.url)
        self.from_cache = True
        if _names(self._wish.headers.get(_TAGS, ""), entry.headers.get("etag", "")):
            self._ready = memoryview(b"")
            told = {name: value for name, value in entry.headers.items() if name != "content-length"}
            return MediaHead(_NOT_MODIFIED, told, entry.hops[-1], session_only=False)
        self._ready = memoryview(entry.body)
        headers = {**entry.headers, "content-length": str(len(entry.body))}
        return MediaHead(_COMPLETE, headers, entry.hops[-1], session_only=False)

    def _confirm(self, entry: Entry, head: MediaHead) -> MediaHead:
        self._flow.close()
        headers = {**entry.headers, **{name: head.headers[name] for name in _RENEWED if name in head.headers}}
        seconds = lifetime(_COMPLETE, headers)
        renewed = entry._replace(headers=headers, fresh_until=time() + (seconds or 0.0))
        if self._cache is not None and seconds is not None and not head.session_only:
            self._cache.store(renewed)
        return self._serve(renewed)._replace(session_only=head.session_only)

    def _may_keep(self, head: MediaHead) -> bool:
        if self._cache is None or head.session_only or lifetime(head.status, head.headers) is None:
            return False
        length = head.headers.get("content-length", "")
        return not (length.isdecimal() and int(length) > self._parts.limits.cached_bytes)

    def _collect(self, data: bytes) -> None:
        if self._collected is None:
            return
        if not data:
            self._keep(bytes(self._collected))
            self._collected = None
            return
        self._collected += data
        if len(self._collected) > self._parts.limits.cached_bytes:
            self._collected = None

    def _keep(self, body: bytes) -> None:
        head, cache = self._head, self._cache
        seconds = None if head is None else lifetime(head.status, head.headers)
        if head is None or cache is None or seconds is None:
            return
        hops = tuple(self._flow.hops)
        entry = Entry(self._wish.hop.url, self._accept, hops, head.headers, time() + seconds, body)
        cache.store(entry)
        self._parts.log("kept", subject=str(self._asker.subject), url=entry.url, seconds=seconds)

    @property
    def _accept(self) -> str:
        return self._wish.headers.get("accept", _ANY)


_RENEWED = ("age", "cache-control", "date", "etag", "expires", "last-modified", "vary")


def _names(tags: str, tag: str) -> bool:
    """Return whether a list of tags contains this one, with weak comparison."""
    listed = {each.strip().removeprefix("W/") for each in tags.split(",")}
    return bool(tag) and tag.removeprefix("W/") in listed


def _questions(entry: Entry) -> dict[str, str]:
    """Return the headers that revalidate an entry; empty after a redirect, because the tag belongs to the last hop."""
    if len(entry.hops) > 1:
        return {}
    pairs = (("if-none-match", "etag"), ("if-modified-since", "last-modified"))
    return {question: entry.headers[name] for question, name in pairs if name in entry.headers}
