"""Strict YAML reader that records the line of every value, and opens only files that their owner alone can write.

PyYAML keeps the last of two equal keys, reads ``on`` as true and ``22:22`` as a number, and follows aliases. A
configuration decides what is enforced, so only PyYAML's parser is used here. Ambiguous values are rejected, and a plain
word is a number, ``true``, ``false`` or ``null`` only if YAML 1.2 and JSON agree.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

import yaml  # type: ignore[import-untyped]  # it has no annotations

from democrai_sandbox.policy import Problem, pointer_to
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

LARGEST_FILE = 1024 * 1024
"""Maximum size of a configuration in bytes."""

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_BOM = "\ufeff"


class FileRefusedError(Exception):
    """Unusable file; the text contains the reason, ``line`` the line."""

    def __init__(self, why: str, line: int = 0) -> None:
        super().__init__(why)
        self.line = line


def read_file(path: str) -> str:
    """Return the text of a configuration file; raise if it is unusable."""
    try:
        # Non-blocking: a pipe at this path would block the start.
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_owner(os.fstat(number), path)
            with os.fdopen(number, "rb", closefd=False) as file:
                data = file.read(LARGEST_FILE + 1)
        finally:
            os.close(number)
    except FileNotFoundError:
        raise FileRefusedError("the file does not exist") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the file name is invalid"
        raise FileRefusedError(f"the file cannot be read: {why}") from None
    if len(data) > LARGEST_FILE:
        raise FileRefusedError(f"the file is larger than {LARGEST_FILE:,} bytes")
    try:
        return data.decode("utf-8").removeprefix(_BOM)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise FileRefusedError(f"the text is not UTF-8 (byte 0x{data[error.start]:02x})", line) from None


def _check_owner(status: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise FileRefusedError("this is a folder; a file is needed")
    if not stat.S_ISREG(status.st_mode):
        raise FileRefusedError("this is not a regular file")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        command = f"chmod go-w {quote(str(Path(path)))}"
        raise FileRefusedError(f"other users can write the file; to fix it: {command}")


DEEPEST_NESTING = 32
MOST_VALUES = 10_000
LONGEST_KEY = 256
_LONGEST_NUMBER = 64

_WORDS: Mapping[str, bool | None] = MappingProxyType({"": None, "~": None, "null": None, "true": True, "false": False})
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_TOKEN = re.compile(r"""['"](?:.?|<[a-z ]+>)['"]""")
_NO_TAGS = "YAML tags, anchors, aliases and directives are not supported: write the value itself"


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """Content of a text."""

    value: Any
    lines: dict[str, int] = field(default_factory=dict)
    """Line of each value by pointer, counted from one; with a key, the line of the key."""
    problems: tuple[tuple[Problem, int], ...] = ()
    """Problems with their lines. A document with problems must not be used."""


def read_document(text: str) -> YamlDocument:
    """Return the content of a YAML text, as far as it can be read."""
    reader = _YamlReader()
    try:
        reader.events = yaml.parse(text, Loader=yaml.SafeLoader)
        value = reader.read()
    except _StoppedError:
        value = None
    except yaml.reader.ReaderError as error:
        value = None
        line = text.count("\n", 0, error.position) + 1
        reader.problems.append((Problem("", f"the text contains the character U+{error.character:04X}"), line))
    except yaml.MarkedYAMLError as error:
        value = None
        mark = error.problem_mark or error.context_mark
        reader.problems.append((Problem("", f"not valid YAML: {_parser_message(error)}"), mark.line + 1 if mark else 1))
    return YamlDocument(value, reader.lines, tuple(reader.problems))


class _StoppedError(Exception):
    """Fatal problem that stops reading."""


_UNREAD = object()


class _YamlReader:
    """Reader that builds values from the parser's events one by one, and checks each before building it."""

    events: Iterator[Any]

    def __init__(self) -> None:
        self.lines: dict[str, int] = {}
        self.problems: list[tuple[Problem, int]] = []
        self._depth = 0
        self._values = 0

    def read(self) -> Any:
        """Return the only document of the text; None without one."""
        next(self.events)  # start of the stream
        begin = next(self.events)
        if isinstance(begin, yaml.StreamEndEvent):
            return None
        if begin.version or begin.tags:
            self._note("", _NO_TAGS, begin)
        value = self._value(next(self.events), "")
        next(self.events)  # end of the document
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._stop("", "a second YAML document begins here: use one document only", after)
        return None if value is _UNREAD else value

    def _value(self, event: Any, pointer: str) -> Any:
        self._values += 1
        if self._values > MOST_VALUES:
            self._stop("", f"more than {MOST_VALUES:,} values", event)
        if isinstance(event, yaml.AliasEvent):
            self._note(pointer, _NO_TAGS, event)
            return _UNREAD
        is_plain = event.anchor is None and event.tag is None
        if not is_plain:
            self._note(pointer, _NO_TAGS, event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, pointer) if is_plain else _UNREAD
        self._depth += 1
        if self._depth > DEEPEST_NESTING:
            self._stop(pointer, f"nested deeper than {DEEPEST_NESTING} levels", event)
        value = self._object(pointer) if isinstance(event, yaml.MappingStartEvent) else self._list(pointer)
        self._depth -= 1
        return value if is_plain else _UNREAD

    def _object(self, pointer: str) -> dict[str, Any]:
        members: dict[str, Any] = {}
        seen: dict[str, int] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._key(event, pointer)
            place = pointer_to(pointer, key)
            line = event.start_mark.line + 1
            if key in seen:
                self._note(place, f"duplicate key {shown(key)}, first in line {seen[key]}", event)
            seen.setdefault(key, line)
            self.lines[place] = line
            value = self._value(next(self.events), place)
            if value is not _UNREAD:
                members[key] = value
        return members

    def _key(self, event: Any, pointer: str) -> str:
        plain = isinstance(event, yaml.ScalarEvent) and event.anchor is None and event.tag is None
        value = self._scalar(event, pointer) if plain else _UNREAD
        if type(value) is not str:
            self._stop(pointer, "a key must be a text; put it in quotes if it looks like another type", event)
        if len(value) > LONGEST_KEY:
            self._stop(pointer, f"a key is longer than {LONGEST_KEY} characters", event)
        return value

    def _list(self, pointer: str) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            place = pointer_to(pointer, len(items))
            self.lines[place] = event.start_mark.line + 1
            value = self._value(event, place)
            items.append(None if value is _UNREAD else value)
        return items

    def _scalar(self, event: Any, pointer: str) -> Any:
        text: str = event.value
        if event.style is not None:
            return text
        if text in _WORDS:
            return _WORDS[text]
        is_integer, is_float = _INTEGER.fullmatch(text), _FLOAT.fullmatch(text)
        if not is_integer and not is_float:
            return text
        if len(text) <= _LONGEST_NUMBER:
            number = int(text) if is_integer else float(text)
            if isfinite(number):
                return number
        self._note(pointer, "the number is too large or too long", event)
        return _UNREAD

    def _note(self, pointer: str, message: str, event: Any) -> None:
        self.problems.append((Problem(pointer, message), event.start_mark.line + 1))

    def _stop(self, pointer: str, message: str, event: Any) -> NoReturn:
        self._note(pointer, message, event)
        raise _StoppedError


def _parser_message(error: Any) -> str:
    """Return the parser's message without quoted text, which may be a password; keep single characters."""
    said = ", ".join(filter(None, (error.context, error.problem)))
    return _QUOTED.sub(lambda quoted: quoted[0] if _TOKEN.fullmatch(quoted[0]) else "something", said)
