"""The keys that resume contexts are encrypted with: an ordered ring, kept in a file that only its owner can read.

The first key encrypts, all of them decrypt. Every node over one database needs the same file.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError, nearest
from democrai_sandbox.policy.text import shown

from .files import whole
from .keys import KEY_BYTES, Key, parse_keys, with_first, with_introduced, without

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["KEY_BYTES", "Key", "KeyFile", "KeyRing", "introduce", "make_key_file", "promote", "retire", "rotate"]

_LARGEST_FILE = 64 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Keys in their order: the first encrypts, all decrypt. Never empty."""

    keys: tuple[Key, ...]

    def __post_init__(self) -> None:
        """Refuse a ring that cannot encrypt, or in which an id means two keys."""
        if not self.keys:
            raise InvalidInputError.of("a key ring needs at least one key", pointer="/keys")
        if len({key.id for key in self.keys}) < len(self.keys):
            raise InvalidInputError.of("two keys of the ring have the same id", pointer="/keys")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read the ring from a file; where there is none, make one with a random key.

        Of several processes that find none at the same time one makes it, and the others read that.
        """
        place = Path(path)
        try:
            return _read(place)
        except FileNotFoundError:
            _make(place)
        return _read(place)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read the ring from a file that is there."""
        return _read(Path(path))

    @property
    def first(self) -> Key:
        """The key that encrypts."""
        return self.keys[0]

    def find(self, key_id: str) -> Key | None:
        """Return the key of this id."""
        return next((key for key in self.keys if key.id == key_id), None)


class KeyFile:
    """The ring of a file, read again when the file was exchanged: a rotation elsewhere needs no restart here.

    A file that cannot be read any more is logged, and the ring that was read last stays.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the file now, so that a bad one is known at start."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._ring = KeyRing.open(self._path)
        # None until the next call: a rotation between reading and looking must not be taken for read.
        self._version: tuple[int, ...] | None = None

    def ring(self) -> KeyRing:
        """Return the present keys."""
        with self._lock:
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self._read_again()
            return self._ring

    def _read_again(self) -> None:
        try:
            self._ring = _read(self._path)
        except (OSError, InvalidInputError) as error:
            _log.warning("the key file %s cannot be read, the keys read before stay in use: %s", self._path, error)


def rotate(path: str | os.PathLike[str]) -> KeyRing:
    """Put a new random key first: it encrypts from now on, and the others go on decrypting."""
    place = Path(path)
    with _locked(place) as text:
        _parse(text, place)
        return _write(place, with_first(text, Key.random()))


def introduce(path: str | os.PathLike[str]) -> KeyRing:
    """Put a new random key last: it encrypts nothing yet, so that every node can have it before one uses it."""
    place = Path(path)
    with _locked(place) as text:
        _parse(text, place)
        return _write(place, with_introduced(text, Key.random()))


def promote(path: str | os.PathLike[str], key_id: str) -> KeyRing:
    """Put a key of the ring first: it encrypts from now on, and the others go on decrypting."""
    place = Path(path)
    with _locked(place) as text:
        key = _known(_parse(text, place), key_id)
        return _write(place, with_first(text, key))


def retire(path: str | os.PathLike[str], key_id: str) -> KeyRing:
    """Take a key out, for good: what only it decrypts is lost. The key that encrypts cannot be retired."""
    place = Path(path)
    with _locked(place) as text:
        ring = _parse(text, place)
        if _known(ring, key_id) == ring.first:
            raise InvalidInputError.of(f"{key_id} is the key that encrypts: rotate first", pointer="/key_id")
        return _write(place, without(text, key_id))


def _known(ring: KeyRing, key_id: str) -> Key:
    found = ring.find(key_id)
    if found is None:
        known = nearest(key_id, (key.id for key in ring.keys))
        raise InvalidInputError.of(f"no key has the id {shown(key_id)}", pointer="/key_id", suggestion=known)
    return found


# ---- the file


def _read(place: Path) -> KeyRing:
    with _opened(place) as descriptor:
        return _parse(_text(place, descriptor), place)


@contextmanager
def _opened(place: Path) -> Iterator[int]:
    """Open the file for reading, if it is a plain file of this user that nobody else can reach."""
    try:
        # Not blocking, for the case that it is a pipe: that is refused below, not waited for.
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InvalidInputError.of(f"{place}: a key file must not be a symbolic link") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInputError.of(f"{place}: not a plain file")
        if found.st_uid != os.geteuid():
            raise InvalidInputError.of(f"{place}: belongs to user {found.st_uid}, expected {os.geteuid()}")
        if found.st_mode & _OTHERS:
            mode = stat.S_IMODE(found.st_mode)
            raise InvalidInputError.of(f"{place}: others may use it (mode {mode:04o}); expected 0600")
        yield descriptor
    finally:
        os.close(descriptor)


def _text(place: Path, descriptor: int) -> str:
    with open(descriptor, "rb", closefd=False) as file:
        data = file.read(_LARGEST_FILE + 1)
    if len(data) > _LARGEST_FILE:
        raise InvalidInputError.of(f"{place}: larger than {_LARGEST_FILE} bytes")
    try:
        return data.decode("ascii")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError.of(f"{place}, line {line}: a byte that is not ASCII") from None


@contextmanager
def _locked(place: Path) -> Iterator[str]:
    """Give the text of the file, and keep other rotations out meanwhile."""
    while True:
        with _opened(place) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Whoever had the lock before has put another file in its place: that one is to be locked.
            if os.path.samestat(os.fstat(descriptor), place.stat(follow_symlinks=False)):
                yield _text(place, descriptor)
                return


def make_key_file(path: str | os.PathLike[str]) -> bool:
    """Make the file with one random key where there is none; return whether this process has made it."""
    place = Path(path)
    return not place.exists() and _make(place)


def _make(place: Path) -> bool:
    """Make the file with one random key, unless another process was quicker; return whether this one has made it."""
    if not place.parent.is_dir():
        raise InvalidInputError.of(f"{place}: the folder for the key file does not exist")
    try:
        with whole(place, replaces=False) as made:
            made.write_text(Key.random().line, encoding="ascii")
    except FileExistsError:
        return False
    _log.info("made the key file %s with a new key", place)
    return True


def _write(place: Path, text: str) -> KeyRing:
    """Exchange the file as a whole, if the new text is a good one."""
    ring = _parse(text, place)
    with whole(place) as made:
        made.write_text(text, encoding="ascii")
    return ring


def _parse(text: str, place: Path) -> KeyRing:
    return KeyRing(parse_keys(text, place))


def _version(place: Path) -> tuple[int, ...] | None:
    """Return what changes when the file does; None when it cannot be looked at."""
    try:
        found = place.stat(follow_symlinks=False)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
