"""Cache of fetched media in the data folder of the module.

The module can write there, so nothing in it is trusted: every entry has a keyed hash that only the host can make, links
are not followed, only regular files are opened, and file names are made from hashes. Files that a module adds are not
served; entries that it removes or damages are fetched again.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

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


class Entry(NamedTuple):
    """A cached response."""

    url: str
    accept: str
    hops: tuple[str, ...]
    """All URLs of the fetch, each of which has to be authorized again."""
    headers: dict[str, str]
    fresh_until: float
    body: bytes


class MediaCache:
    """Cache of one module."""

    def __init__(self, home: str, module: str, key: bytes, *, most_bytes: int, entry_bytes: int) -> None:
        """Store entries below ``home``, the module's data folder; it is created with the first entry."""
        self._home, self._module, self._key = home, module, key
        self._most_bytes, self._entry_bytes = most_bytes, entry_bytes

    def load(self, url: str, accept: str) -> Entry | None:
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

    def store(self, entry: Entry) -> None:
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

    def _seal(self, entry: Entry) -> bytes:
        meta = {**entry._asdict(), "module": self._module, "length": len(entry.body)}
        del meta["body"]
        content = json.dumps(meta).encode("ascii") + b"\n" + entry.body
        return self._mac(content) + b"\n" + content

    def _open(self, data: bytes) -> Entry | None:
        mac, _, content = data.partition(b"\n")
        if len(mac) != _MAC_LENGTH or not hmac.compare_digest(mac, self._mac(content)):
            return None
        # The hash is valid, so the host wrote the rest.
        head, _, body = content.partition(b"\n")
        meta: dict[str, Any] = json.loads(head)
        if meta.pop("module") != self._module or meta.pop("length") != len(body):
            return None
        return Entry(**{**meta, "hops": tuple(meta["hops"]), "body": body})

    def _mac(self, content: bytes) -> bytes:
        return hmac.new(self._key, content, hashlib.sha256).hexdigest().encode("ascii")


def _name(url: str, accept: str) -> str:
    return hashlib.sha256(json.dumps([url, accept]).encode("utf-8", "surrogatepass")).hexdigest() + _SUFFIX
