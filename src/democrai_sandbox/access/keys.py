"""Keys as they stand in a key file: one per line, ``id:base64 of 32 bytes``, and which of them were only introduced.

Empty lines and comments, which begin with ``#``, are skipped. One comment means something: ``# introduced: id`` marks a
key that encrypts nothing yet. A comment, so that whoever does not know of it reads the same keys.
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
    """One key and the name that ciphertexts know it by."""

    id: str
    secret: bytes = field(repr=False)
    introduced: bool = field(default=False, repr=False, compare=False)
    """Whether it was only introduced: it encrypts nothing yet, and is to."""

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


def with_first(text: str, key: Key) -> str:
    """Return the text with a key before all others, which is in use from then on; comments stay.

    The one that was first until then has been in use, whatever a mark says.
    """
    lines = without(text, key.id).splitlines(keepends=True)
    first = next((_named(line) for line in lines if _is_key(line)), "")
    return key.line + "".join(line for line in lines if not first or _marked(line) != first)


def with_introduced(text: str, key: Key) -> str:
    """Return the text with a key after all others, marked as one that is not in use yet."""
    ended = text if text.endswith("\n") else f"{text}\n"
    return f"{ended}# introduced: {key.id}\n{key.line}"


def without(text: str, key_id: str) -> str:
    """Return the text without the line of a key and the mark of it; other comments stay."""
    return "".join(line for line in text.splitlines(keepends=True) if key_id not in (_named(line), _marked(line)))


def parse_keys(text: str, place: Path) -> tuple[Key, ...]:
    """Return the keys that a text says. Problems name the line and never show what is in it: it may be a key."""
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
        problems.append(Problem("", f"{place}: there is no key in it"))
    if problems:
        raise InvalidInputError(problems)
    marked = {_marked(line) for line in text.splitlines()}
    # The first one encrypts, whatever a mark says that was left by hand.
    return (keys[0], *(replace(key, introduced=key.id in marked) for key in keys[1:]))


def _parse_line(line: str) -> Key | str:
    """Return the key, or what is wrong with its line."""
    key_id, colon, encoded = line.partition(":")
    if not colon:
        return "expected id:base64"
    if not _ID.fullmatch(key_id):
        return f"an id has 1 to {_LONGEST_ID} letters, digits, dots, dashes and underscores"
    try:
        secret = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return "what follows the colon is not base64"
    if len(secret) != KEY_BYTES:
        return f"a key has {KEY_BYTES} bytes, this one {len(secret)}"
    return Key(key_id, secret)


def _is_key(line: str) -> bool:
    """Whether a line is neither empty nor a comment."""
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _named(line: str) -> str:
    """Return the id of the key in a line."""
    return line.strip().partition(":")[0]


def _marked(line: str) -> str:
    """Return the id of the key that a line marks as introduced; empty when it marks none."""
    found = _INTRODUCED.fullmatch(line.strip())
    return found[1] if found else ""
