"""The keys that resume contexts are encrypted with: an ordered ring, kept in a file that only its owner can read.

The file has one key per line, ``id:base64 of 32 bytes``; empty lines and lines that begin with ``#`` are skipped. The
first key encrypts, all of them decrypt. Every node over one database needs the same file.
"""

from __future__ import annotations

import base64
import binascii
import errno
import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError, Problem, nearest
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY_BYTES = 32
LONGEST_KEY_ID = 64
_LARGEST_FILE = 64 * 1024
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_KEY_ID}}}", re.ASCII)
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Key:
    """One key and the name that ciphertexts know it by."""

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Refuse what could not be written to a file and read back, or is no key of AES-256."""
        if not _ID.fullmatch(self.id):
            raise InvalidInputError.of(f"not the id of a key: {shown(self.id)}", pointer="/id")
        if len(self.secret) != KEY_BYTES:
            raise InvalidInputError.of(f"a key has {KEY_BYTES} bytes, not {len(self.secret)}", pointer="/secret")

    @classmethod
    def random(cls) -> Key:
        """Return a new key."""
        return cls(secrets.token_hex(8), secrets.token_bytes(KEY_BYTES))

    @property
    def line(self) -> str:
        """The key as its line of a file. Secret."""
        return f"{self.id}:{base64.b64encode(self.secret).decode('ascii')}\n"


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
        return _write(place, Key.random().line + text)


def introduce(path: str | os.PathLike[str]) -> KeyRing:
    """Put a new random key last: it encrypts nothing yet, so that every node can have it before one uses it."""
    place = Path(path)
    with _locked(place) as text:
        _parse(text, place)
        return _write(place, (text if text.endswith("\n") else f"{text}\n") + Key.random().line)


def promote(path: str | os.PathLike[str], key_id: str) -> KeyRing:
    """Put a key of the ring first: it encrypts from now on, and the others go on decrypting."""
    place = Path(path)
    with _locked(place) as text:
        key = _known(_parse(text, place), key_id)
        return _write(place, key.line + _without(text, key_id))


def retire(path: str | os.PathLike[str], key_id: str) -> KeyRing:
    """Take a key out, for good: what only it decrypts is lost. The key that encrypts cannot be retired."""
    place = Path(path)
    with _locked(place) as text:
        ring = _parse(text, place)
        if _known(ring, key_id) == ring.first:
            raise InvalidInputError.of(f"{key_id} is the key that encrypts: rotate first", pointer="/key_id")
        return _write(place, _without(text, key_id))


def _known(ring: KeyRing, key_id: str) -> Key:
    found = ring.find(key_id)
    if found is None:
        known = nearest(key_id, (key.id for key in ring.keys))
        raise InvalidInputError.of(f"no key has the id {shown(key_id)}", pointer="/key_id", suggestion=known)
    return found


def _without(text: str, key_id: str) -> str:
    """Return the text without the line of a key; comments stay."""
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.strip().partition(":")[0] != key_id)


# ---- the text of a key file


def _parse(text: str, place: Path) -> KeyRing:
    """Return the ring that a text says. Problems name the line and never show what is in it: it may be a key."""
    keys: list[Key] = []
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key = _parse_line(line.strip())
        if isinstance(key, str):
            problems.append(Problem("", f"{place}, line {number}: {key}"))
        elif key.id in lines:
            problems.append(Problem("", f"{place}, line {number}: the same id as in line {lines[key.id]}"))
        else:
            keys.append(key)
            lines[key.id] = number
    if not keys and not problems:
        problems.append(Problem("", f"{place}: there is no key in it"))
    if problems:
        raise InvalidInputError(problems)
    return KeyRing(tuple(keys))


def _parse_line(line: str) -> Key | str:
    """Return the key, or what is wrong with its line."""
    key_id, colon, encoded = line.partition(":")
    if not colon:
        return "expected id:base64"
    if not _ID.fullmatch(key_id):
        return f"an id has 1 to {LONGEST_KEY_ID} letters, digits, dots, dashes and underscores"
    try:
        secret = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "what follows the colon is not base64"
    if len(secret) != KEY_BYTES:
        return f"a key has {KEY_BYTES} bytes, this one {len(secret)}"
    return Key(key_id, secret)


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


def _make(place: Path) -> None:
    """Make the file with one random key, unless another process was quicker."""
    if not place.parent.is_dir():
        raise InvalidInputError.of(f"{place}: the folder for the key file does not exist")
    with _temporary(place, Key.random().line) as made:
        try:
            # Unlike a rename, a link never replaces what is there.
            place.hardlink_to(made)
        except FileExistsError:
            return
        _sync_folder(place)
    _log.info("made the key file %s with a new key", place)


def _write(place: Path, text: str) -> KeyRing:
    """Exchange the file as a whole, if the new text is a good one."""
    ring = _parse(text, place)
    with _temporary(place, text) as made:
        made.replace(place)
        _sync_folder(place)
    return ring


@contextmanager
def _temporary(place: Path, text: str) -> Iterator[Path]:
    """Give a file next to ``place`` with this text in it, on disk, readable for its owner alone."""
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    made = Path(name)
    try:
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor, not a path
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        yield made
    finally:
        with suppress(FileNotFoundError):
            made.unlink()


def _sync_folder(place: Path) -> None:
    descriptor = os.open(place.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _version(place: Path) -> tuple[int, ...] | None:
    """Return what changes when the file does; None when it cannot be looked at."""
    try:
        found = place.stat(follow_symlinks=False)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
