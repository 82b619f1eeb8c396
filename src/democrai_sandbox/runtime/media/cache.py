"""Cache of fetched media in the data folder of the module, and the fetch that reads it first."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import NetworkDenied
from democrai_sandbox.policy import DecisionCode

from .fetch import Fetch, FetchOptions, FetchParts
from .http_request import CONDITIONS, read_url
from .values import Asker, MediaHead

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LONGEST_LIFETIME = 7 * 24 * 3600.0
"""Upper limit, independent of the server's headers."""
_DIRECTIVE = re.compile(r"([a-z-]+)(?:=\"?([0-9]{1,10})\"?)?", re.IGNORECASE)
_SECONDS = re.compile(r"[0-9]{1,10}")
_COMPLETE = 200


def lifetime(status: int, headers: Mapping[str, str]) -> float | None:
    """Return the seconds for which a response is fresh; None if it must not be cached.

    A response without a lifetime is cached only if it can be revalidated, and then is revalidated each time.
    """
    directives = {name.lower(): value for name, value in _DIRECTIVE.findall(headers.get("cache-control", ""))}
    if status != _COMPLETE or "no-store" in directives or "*" in headers.get("vary", ""):
        return None
    seconds = _seconds(directives, headers)
    if seconds <= 0 and not ("etag" in headers or "last-modified" in headers):
        return None
    return seconds


def _seconds(directives: Mapping[str, str], headers: Mapping[str, str]) -> float:
    if "no-cache" in directives:
        return 0.0
    if "max-age" in directives:
        age = headers.get("age", "")
        granted = float(directives["max-age"] or 0) - (float(age) if _SECONDS.fullmatch(age) else 0.0)
    else:
        granted = _until(headers)
    return min(max(granted, 0.0), LONGEST_LIFETIME)


def _until(headers: Mapping[str, str]) -> float:
    """Return the seconds between the two dates of a response; 0 if one is missing or invalid."""
    try:
        end, begin = parsedate_to_datetime(headers["expires"]), parsedate_to_datetime(headers["date"])
        return (end - begin).total_seconds()
    except (KeyError, ValueError, TypeError, OverflowError):
        return 0.0


FOLDER = "media-cache"
_SUFFIX = ".media"
_NAME_LENGTH = 64 + len(_SUFFIX)
_MOST_ENTRIES = 4096
_MOST_SEEN = 4 * _MOST_ENTRIES
_LONGEST_META = 64 * 1024
_MAC_LENGTH = 64
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class CacheEntry(NamedTuple):
    """A cached response."""

    url: str
    accept: str
    hops: tuple[str, ...]
    """All URLs of the fetch, each of which has to be authorized again."""
    headers: dict[str, str]
    fresh_until: float
    body: bytes


class MediaCache:
    """Cache of one module.

    The module can write there, so nothing in it is trusted: every entry has a keyed hash that only the host can make,
    links are not followed, only regular files are opened, and file names are made from hashes. Files that a module adds
    are not served; entries that it removes or damages are fetched again.
    """

    def __init__(self, home: str, module: str, key: bytes, *, most_bytes: int, entry_bytes: int) -> None:
        """Store entries below ``home``, the module's data folder; it is created with the first entry."""
        self._home, self._module, self._key = home, module, key
        self._most_bytes, self._entry_bytes = most_bytes, entry_bytes

    def load(self, url: str, accept: str) -> CacheEntry | None:
        """Return the entry for a URL; None if it is missing or was not written by the host."""
        name = _name(url, accept)
        try:
            with self._folder(create=False) as folder:
                data = self._read(folder, name)
                entry = self._open(data)
                if entry is None or (entry.url, entry.accept) != (url, accept):
                    return None
                os.utime(name, dir_fd=folder, follow_symlinks=False)
                return entry
        except OSError:
            return None

    def store(self, entry: CacheEntry) -> None:
        """Store a response unless it is too large; remove the least recently used entries to make room.

        If the folder is not writable, the cache is skipped.
        """
        if len(entry.body) > self._entry_bytes:
            return
        with suppress(OSError), self._folder(create=True) as folder:
            self._write(folder, _name(entry.url, entry.accept), self._seal(entry))
            self._make_room(folder)

    @contextmanager
    def _folder(self, *, create: bool) -> Iterator[int]:
        if create:
            Path(self._home).mkdir(mode=0o700, parents=True, exist_ok=True)
        home = os.open(self._home, _FOLDER_FLAGS)
        try:
            if create:
                with suppress(FileExistsError):
                    os.mkdir(FOLDER, 0o700, dir_fd=home)
            # Do not follow links: the module could have created one, and the host can write anywhere.
            folder = os.open(FOLDER, _FOLDER_FLAGS, dir_fd=home)
        finally:
            os.close(home)
        try:
            yield folder
        finally:
            os.close(folder)

    def _read(self, folder: int, name: str) -> bytes:
        # A pipe in place of the file would block without O_NONBLOCK.
        with os.fdopen(os.open(name, _READ_FLAGS, dir_fd=folder), "rb") as file:
            found = os.fstat(file.fileno())
            largest = self._entry_bytes + _LONGEST_META + _MAC_LENGTH + 2
            if not stat.S_ISREG(found.st_mode) or found.st_size > largest:
                return b""
            return file.read(largest)

    def _write(self, folder: int, name: str, data: bytes) -> None:
        """Write a draft and rename it, so that a reader never sees a partial entry."""
        draft = f"{secrets.token_hex(16)}.draft"
        try:
            with os.fdopen(os.open(draft, _WRITE_FLAGS, 0o600, dir_fd=folder), "wb") as file:
                file.write(data)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError:
            with suppress(OSError):
                os.unlink(draft, dir_fd=folder)
            raise

    def _make_room(self, folder: int) -> None:
        kept = sorted(self._listed(folder), reverse=True)
        total = 0
        for position, (_, size, name) in enumerate(kept):
            total += size
            if total > self._most_bytes or position >= _MOST_ENTRIES or name.endswith(".draft"):
                with suppress(OSError):
                    os.unlink(name, dir_fd=folder)

    def _listed(self, folder: int) -> Iterator[tuple[int, int, str]]:
        """Yield time, size and name of the entries, and of drafts that a crash left behind."""
        with os.scandir(folder) as items:
            for seen, item in enumerate(items):
                if seen >= _MOST_SEEN:
                    return  # the module filled the folder with its own files, and reading them has a cost
                ours = len(item.name) == _NAME_LENGTH and item.name.endswith(_SUFFIX)
                if not ours and not item.name.endswith(".draft"):
                    continue
                with suppress(OSError):
                    found = item.stat(follow_symlinks=False)
                    if stat.S_ISREG(found.st_mode):
                        yield found.st_mtime_ns, found.st_size, item.name

    def _seal(self, entry: CacheEntry) -> bytes:
        meta = {**entry._asdict(), "module": self._module, "length": len(entry.body)}
        del meta["body"]
        content = json.dumps(meta).encode("ascii") + b"\n" + entry.body
        return self._mac(content) + b"\n" + content

    def _open(self, data: bytes) -> CacheEntry | None:
        mac, _, content = data.partition(b"\n")
        if len(mac) != _MAC_LENGTH or not hmac.compare_digest(mac, self._mac(content)):
            return None
        # The hash is valid, so the host wrote the rest.
        head, _, body = content.partition(b"\n")
        meta: dict[str, Any] = json.loads(head)
        if meta.pop("module") != self._module or meta.pop("length") != len(body):
            return None
        return CacheEntry(**{**meta, "hops": tuple(meta["hops"]), "body": body})

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._key, content, hashlib.sha256).hexdigest().encode("ascii")


def _name(url: str, accept: str) -> str:
    return hashlib.sha256(json.dumps([url, accept]).encode("utf-8", "surrogatepass")).hexdigest() + _SUFFIX


_NOT_MODIFIED = 304
_ANY = "*/*"
_TAGS = "if-none-match"


class CachedFetch:
    """Has the same steps as a ``Fetch``. Each URL is authorized as if it were fetched, also for cached responses."""

    def __init__(self, parts: FetchParts, asker: Asker, wish: FetchOptions, cache: MediaCache | None) -> None:
        """Use the cache only for HTTP requests of the whole content."""
        whole = wish.method == "GET" and not wish.headers.keys() & (CONDITIONS - {_TAGS})
        self._parts, self._asker, self._wish = parts, asker, wish
        self._cache = cache if whole else None
        self._flow = Fetch(parts, asker, wish)
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

    def _kept(self) -> CacheEntry | None:
        """Return a cached entry that is still permitted; never one that is permitted only for this session."""
        if self._cache is None:
            return None
        first = self._parts.authority.authorise(self._asker, self._wish.hop)
        if first is DecisionCode.SESSION_APPROVAL:
            self._cache = None
            return None
        entry = self._cache.load(self._wish.hop.url, self._accept)
        return entry if entry is not None and self._is_permitted(entry) else None

    def _is_permitted(self, entry: CacheEntry) -> bool:
        if len(entry.body) > self._wish.most_bytes:
            return False
        try:
            codes = [self._parts.authority.authorise(self._asker, read_url(url)) for url in entry.hops[1:]]
        except NetworkDenied:
            return False  # ask the server, which may redirect elsewhere now
        return DecisionCode.SESSION_APPROVAL not in codes

    def _serve(self, entry: CacheEntry) -> MediaHead:
        self._parts.log("cached", subject=str(self._asker.subject), url=entry.url)
        self.from_cache = True
        if _names(self._wish.headers.get(_TAGS, ""), entry.headers.get("etag", "")):
            self._ready = memoryview(b"")
            told = {name: value for name, value in entry.headers.items() if name != "content-length"}
            return MediaHead(_NOT_MODIFIED, told, entry.hops[-1], session_only=False)
        self._ready = memoryview(entry.body)
        headers = {**entry.headers, "content-length": str(len(entry.body))}
        return MediaHead(_COMPLETE, headers, entry.hops[-1], session_only=False)

    def _confirm(self, entry: CacheEntry, head: MediaHead) -> MediaHead:
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
        """Add a part of the body; store the entry at the end, unless it became too large."""
        if self._collected is None:
            return
        self._collected += data
        if not data:
            self._keep(bytes(self._collected))
        if not data or len(self._collected) > self._parts.limits.cached_bytes:
            self._collected = None

    def _keep(self, body: bytes) -> None:
        head, cache = self._head, self._cache
        seconds = None if head is None else lifetime(head.status, head.headers)
        if head is None or cache is None or seconds is None:
            return
        hops = tuple(self._flow.hops)
        entry = CacheEntry(self._wish.hop.url, self._accept, hops, head.headers, time() + seconds, body)
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


def _questions(entry: CacheEntry) -> dict[str, str]:
    """Return the headers that revalidate an entry; empty after a redirect, because the tag belongs to the last hop."""
    if len(entry.hops) > 1:
        return {}
    pairs = (("if-none-match", "etag"), ("if-modified-since", "last-modified"))
    return {question: entry.headers[name] for question, name in pairs if name in entry.headers}
