"""Key ring: ordered encryption keys in a file that only its owner can read."""

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
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox._util.atomic_file import atomic_write
from democrai_sandbox.policy import InvalidInputError, Problem, nearest
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEY_BYTES = 32
_LONGEST_ID = 64
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{_LONGEST_ID}}}", re.ASCII)
_INTRODUCED = re.compile(rf"#\s*introduced:\s*({_ID.pattern})", re.ASCII)


@dataclass(frozen=True, slots=True)
class EncryptionKey:
    """Key with the id that ciphertexts refer to."""

    id: str
    secret: bytes = field(repr=False)
    introduced: bool = field(default=False, repr=False, compare=False)
    """Whether the key was only introduced and does not encrypt yet."""

    def __post_init__(self) -> None:
        """Reject ids that a file cannot hold and secrets that are not AES-256 keys."""
        if not _ID.fullmatch(self.id):
            raise InvalidInputError.of(f"invalid key id {shown(self.id)}", pointer="/id")
        if len(self.secret) != KEY_BYTES:
            raise InvalidInputError.of(f"expected {KEY_BYTES} bytes, got {len(self.secret)}", pointer="/secret")

    @classmethod
    def random(cls) -> EncryptionKey:
        """Return a new key."""
        return cls(secrets.token_hex(8), secrets.token_bytes(KEY_BYTES))

    @property
    def line(self) -> str:
        """Line of the key in a file. Secret."""
        return f"{self.id}:{base64.b64encode(self.secret).decode('ascii')}\n"


def with_first(text: str, key: EncryptionKey) -> str:
    """Return the text with a key at the front, and without the mark of the previous first key, which was in use."""
    lines = without(text, key.id).splitlines(keepends=True)
    first = next((_named(line) for line in lines if _is_key(line)), "")
    return key.line + "".join(line for line in lines if not first or _marked(line) != first)


def with_introduced(text: str, key: EncryptionKey) -> str:
    """Return the text with a key at the end, marked as not in use yet."""
    ended = text if text.endswith("\n") else f"{text}\n"
    return f"{ended}# introduced: {key.id}\n{key.line}"


def without(text: str, key_id: str) -> str:
    """Return the text without the line and the mark of a key; other comments stay."""
    return "".join(line for line in text.splitlines(keepends=True) if key_id not in (_named(line), _marked(line)))


def parse_keys(text: str, place: Path) -> KeyRing:
    """Parse the keys of a file. Problems name the line but not its content, which may be a key.

    Empty lines and comments, which start with ``#``, are skipped. The comment ``# introduced: id`` marks a key that
    does not encrypt yet. It is a comment so that versions without this feature read the same keys.
    """
    keys: list[EncryptionKey] = []
    lines: dict[str, int] = {}
    problems: list[Problem] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not _is_key(line):
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
        problems.append(Problem("", f"{place}: the key file contains no key"))
    if problems:
        raise InvalidInputError(problems)
    marked = {_marked(line) for line in text.splitlines()}
    # The first key encrypts even if a mark that was edited by hand says otherwise.
    return KeyRing((keys[0], *(replace(key, introduced=key.id in marked) for key in keys[1:])))


def _parse_line(line: str) -> EncryptionKey | str:
    """Return the key, or the problem with its line."""
    key_id, colon, encoded = line.partition(":")
    if not colon:
        return "expected id:base64"
    if not _ID.fullmatch(key_id):
        return f"expected an id of 1 to {_LONGEST_ID} letters, digits, dots, dashes and underscores"
    try:
        secret = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "the text after the colon is not base64"
    if len(secret) != KEY_BYTES:
        return f"expected a key of {KEY_BYTES} bytes, got {len(secret)}"
    return EncryptionKey(key_id, secret)


def _is_key(line: str) -> bool:
    """Return whether a line is neither empty nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _named(line: str) -> str:
    """Return the id of the key in a line."""
    return line.strip().partition(":")[0]


def _marked(line: str) -> str:
    """Return the id of the key that a line marks as introduced, or an empty text."""
    found = _INTRODUCED.fullmatch(line.strip())
    return found[1] if found else ""


_LARGEST_FILE = 64 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyRing:
    """Ordered, non-empty keys: the first encrypts, all decrypt. Every node of one database needs the same file."""

    keys: tuple[EncryptionKey, ...]

    def __post_init__(self) -> None:
        """Reject an empty ring and duplicate ids."""
        if not self.keys:
            raise InvalidInputError.of("a key ring needs at least one key", pointer="/keys")
        if len({key.id for key in self.keys}) < len(self.keys):
            raise InvalidInputError.of("two keys of the ring have the same id", pointer="/keys")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read the ring from a file; if it is missing, one of the processes creates it with a random key."""
        try:
            return cls.read(path)
        except FileNotFoundError:
            _make(Path(path))
        return cls.read(path)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> KeyRing:
        """Read the ring from an existing file."""
        place = Path(path)
        with _opened(place) as descriptor:
            return parse_keys(_text(place, descriptor), place)

    @property
    def first(self) -> EncryptionKey:
        """The key that encrypts."""
        return self.keys[0]

    def find(self, key_id: str) -> EncryptionKey | None:
        """Return the key with this id."""
        return next((key for key in self.keys if key.id == key_id), None)


class KeyFile:
    """Key ring of a file, read again when the file changes, so that a rotation needs no restart.

    If the file becomes unreadable, this is logged and the last ring stays in use.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Read the file now, so that an invalid one is reported at start."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._ring = KeyRing.open(self._path)
        # None until the next call: a rotation between reading the file and its version must not be missed.
        self._version: tuple[int, ...] | None = None

    def ring(self) -> KeyRing:
        """Return the current keys."""
        with self._lock:
            version = _version(self._path)
            if version != self._version:
                self._version = version
                try:
                    self._ring = KeyRing.read(self._path)
                except (OSError, InvalidInputError) as error:
                    what = "cannot read the key file %s; the previously read keys stay in use: %s"
                    _log.warning(what, self._path, error)
            return self._ring


def rotate(path: str | os.PathLike[str]) -> KeyRing:
    """Add a new random key at the front: it encrypts from now on, and the others keep decrypting."""
    return _changed(path, lambda text, _: with_first(text, EncryptionKey.random()))


def introduce(path: str | os.PathLike[str]) -> KeyRing:
    """Add a new random key at the end. It does not encrypt yet, so that every node can receive it first."""
    return _changed(path, lambda text, _: with_introduced(text, EncryptionKey.random()))


def promote(path: str | os.PathLike[str], key_id: str) -> KeyRing:
    """Move a key of the ring to the front: it encrypts from now on, and the others keep decrypting."""
    return _changed(path, lambda text, ring: with_first(text, _known(ring, key_id)))


def retire(path: str | os.PathLike[str], key_id: str) -> KeyRing:
    """Remove a key permanently: data that only it decrypts is lost. The key that encrypts cannot be retired."""

    def change(text: str, ring: KeyRing) -> str:
        if _known(ring, key_id) == ring.first:
            raise InvalidInputError.of(f"{key_id} is the encryption key; rotate the keys first", pointer="/key_id")
        return without(text, key_id)

    return _changed(path, change)


def _changed(path: str | os.PathLike[str], change: Callable[[str, KeyRing], str]) -> KeyRing:
    """Replace the file by a changed text atomically, if both texts are valid."""
    place = Path(path)
    with _locked(place) as text:
        new = change(text, parse_keys(text, place))
        ring = parse_keys(new, place)
        with atomic_write(place) as made:
            made.write_text(new, encoding="ascii")
        return ring


def _known(ring: KeyRing, key_id: str) -> EncryptionKey:
    found = ring.find(key_id)
    if found is None:
        known = nearest(key_id, (key.id for key in ring.keys))
        raise InvalidInputError.of(f"no key has the id {shown(key_id)}", pointer="/key_id", suggestion=known)
    return found


# ---- the file


@contextmanager
def _opened(place: Path) -> Iterator[int]:
    """Open the file for reading if it is a regular file of this user that other users cannot access."""
    try:
        # Non-blocking, so that a named pipe is rejected below instead of waited for.
        descriptor = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise InvalidInputError.of(f"{place}: a key file must not be a symbolic link") from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidInputError.of(f"{place}: not a regular file")
        if found.st_uid != os.geteuid():
            raise InvalidInputError.of(f"{place}: belongs to user {found.st_uid}, expected {os.geteuid()}")
        if found.st_mode & _OTHERS:
            mode = stat.S_IMODE(found.st_mode)
            raise InvalidInputError.of(f"{place}: other users can access it (mode {mode:04o}); set mode 0600")
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
        raise InvalidInputError.of(f"{place}, line {line}: contains a byte that is not ASCII") from None


@contextmanager
def _locked(place: Path) -> Iterator[str]:
    """Yield the text of the file while holding its lock against other rotations."""
    while True:
        with _opened(place) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # The previous holder of the lock has replaced the file: lock the new one instead.
            if os.path.samestat(os.fstat(descriptor), place.stat(follow_symlinks=False)):
                yield _text(place, descriptor)
                return


def make_key_file(path: str | os.PathLike[str]) -> bool:
    """Create the file with one random key if it is missing; return whether this process created it."""
    place = Path(path)
    return not place.exists() and _make(place)


def _make(place: Path) -> bool:
    """Create the file with one random key; return False if another process was faster."""
    if not place.parent.is_dir():
        raise InvalidInputError.of(f"{place}: the folder for the key file does not exist")
    try:
        with atomic_write(place, replaces=False) as made:
            made.write_text(EncryptionKey.random().line, encoding="ascii")
    except FileExistsError:
        return False
    _log.info("created the key file %s with a new key", place)
    return True


def _version(place: Path) -> tuple[int, ...] | None:
    """Return values that change with the file; None if it cannot be read."""
    try:
        found = place.stat(follow_symlinks=False)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)
