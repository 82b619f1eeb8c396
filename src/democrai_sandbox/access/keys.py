"""Format of a key file: one key per line as ``id:base64 of 32 bytes``, with marks for introduced keys.

Empty lines and comments, which start with ``#``, are skipped. The comment ``# introduced: id`` marks a key that does
not encrypt yet. It is a comment so that versions without this feature read the same keys.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from democrai_sandbox.policy import InvalidInputError, Problem
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from pathlib import Path

KEY_BYTES = 32
_LONGEST_ID = 64
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{_LONGEST_ID}}}", re.ASCII)
_INTRODUCED = re.compile(rf"#\s*introduced:\s*({_ID.pattern})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Key:
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
    def random(cls) -> Key:
        """Return a new key."""
        return cls(secrets.token_hex(8), secrets.token_bytes(KEY_BYTES))

    @property
    def line(self) -> str:
        """Line of the key in a file. Secret."""
        return f"{self.id}:{base64.b64encode(self.secret).decode('ascii')}\n"


def with_first(text: str, key: Key) -> str:
    """Return the text with a key at the front, which encrypts from then on; comments stay.

    The mark of the previous first key is removed, because that key has been in use.
    """
    lines = without(text, key.id).splitlines(keepends=True)
    first = next((_named(line) for line in lines if _is_key(line)), "")
    return key.line + "".join(line for line in lines if not first or _marked(line) != first)


def with_introduced(text: str, key: Key) -> str:
    """Return the text with a key at the end, marked as not in use yet."""
    ended = text if text.endswith("\n") else f"{text}\n"
    return f"{ended}# introduced: {key.id}\n{key.line}"


def without(text: str, key_id: str) -> str:
    """Return the text without the line and the mark of a key; other comments stay."""
    return "".join(line for line in text.splitlines(keepends=True) if key_id not in (_named(line), _marked(line)))


def parse_keys(text: str, place: Path) -> tuple[Key, ...]:
    """Parse the keys of a file. Problems name the line but not its content, which may be a key."""
    keys: list[Key] = []
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
    return (keys[0], *(replace(key, introduced=key.id in marked) for key in keys[1:]))


def _parse_line(line: str) -> Key | str:
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
    return Key(key_id, secret)


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
