"""Strict JSON parser with the position of every value, and the problems of a manifest with their positions."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias

from democrai_sandbox.policy import InvalidInputError, Problem, pointer_to
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_PROBLEMS = 100
"""Maximum number of reported problems per manifest; a hostile file could have thousands."""


class Place(NamedTuple):
    """Position in a text, counted from one."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class PlacedProblem(Problem):
    """Problem with its position; zero without a text."""

    line: int = 0
    column: int = 0

    @classmethod
    def at(cls, problem: Problem, place: Place | None) -> PlacedProblem:
        """Return ``problem`` with the position ``place``."""
        return cls(problem.pointer, problem.message, problem.suggestion, *(place or (0, 0)))

    def __str__(self) -> str:
        """Return the problem on one line, the position first."""
        place = f"line {self.line}, column {self.column}: " if self.line else ""
        return place + Problem.__str__(self)


class ManifestError(InvalidInputError):
    """Rejected manifest, whose extension does not run. Contains every problem, and the file if it has one."""

    def __init__(self, problems: Iterable[Problem], path: str = "") -> None:
        """Store the first problems, and a last one with the number of the others."""
        found = tuple(problems)
        if len(found) > MOST_PROBLEMS + 1:
            more = Problem("", f"and {len(found) - MOST_PROBLEMS} more problems")
            found = (*found[:MOST_PROBLEMS], more)
        super().__init__(found)
        self.path = path

    def __str__(self) -> str:
        """List all problems on one line, after the file's path."""
        return f"{self.path}: {super().__str__()}" if self.path else super().__str__()

    def diagnostics(self) -> str:
        """List the problems, one per line, below the code and the file's path."""
        head, newline, rest = super().diagnostics().partition("\n")
        return f"{head} in {self.path}{newline}{rest}" if self.path else f"{head}{newline}{rest}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Rebuild the same error in another process."""
        return (type(self), (self.problems, self.path))


LARGEST_MANIFEST = 1024 * 1024
"""Maximum size of a manifest in bytes."""

DEEPEST_NESTING = 64
MOST_VALUES = 20_000
LONGEST_KEY = 256
_LONGEST_NUMBER = 64

_BOM = "\ufeff"
_BLANKS = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"[-+]?[A-Za-z_][A-Za-z0-9_]*")
# Possessive, so that an unclosed text is detected in one pass.
_TEXT = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+')
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_LITERALS = {"true": True, "false": False, "null": None}
_NOT_NUMBERS = frozenset({"NaN", "-NaN", "Infinity", "-Infinity"})
# Names of the literals in other languages. They are only hints in errors, never accepted.
_OTHER_WORDS = {"True": "true", "False": "false", "None": "null", "nil": "null", "undefined": "null"}

Node: TypeAlias = "tuple[int, dict[str, Node] | list[Node]]"
"""Offset of a value and the nodes of its members; a scalar has none."""


@dataclass(frozen=True, slots=True, repr=False)
class PlacedDocument:
    """JSON value with the position of each part."""

    value: Any
    problems: tuple[PlacedProblem, ...]
    """Problems that did not stop the parser. A document with problems must not be used."""
    _root: Node
    _line_ends: list[int]

    def place(self, pointer: str) -> Place:
        """Return the position of the value at a JSON pointer, or of its nearest existing ancestor."""
        offset, inner = self._root
        for token in pointer.split("/")[1:]:
            found = _child(inner, token.replace("~1", "/").replace("~0", "~"))
            if found is None:
                break
            offset, inner = found
        return _place(self._line_ends, offset)


def read_document(data: bytes | str) -> PlacedDocument:
    """Parse a text, or raise with all its problems."""
    text, problems = _decoded(data)
    return _JsonParser(text, problems).read()


class _NotReadableError(Exception):
    """Error that ends parsing."""


class _JsonParser:
    """Single-pass parser.

    The standard library's parser loses positions, keeps the last of two equal keys and accepts ``NaN``. A manifest
    decides what code may do, so input that two parsers could read differently is rejected here.
    """

    def __init__(self, text: str, problems: list[PlacedProblem]) -> None:
        self.text = text
        self.problems = problems
        self.offset = 0
        self.values = 0
        self.path: list[str | int] = []
        self.line_ends = [match.start() for match in re.finditer("\n", text)]

    def read(self) -> PlacedDocument:
        try:
            self._skip_blanks()
            value, root = self._value()
            self._skip_blanks()
            if self.offset < len(self.text):
                self._stop("unexpected text after the value", self.offset)
        except _NotReadableError:
            raise ManifestError(self.problems) from None
        return PlacedDocument(value, tuple(self.problems), root, self.line_ends)

    def _value(self) -> tuple[Any, Node]:
        begin = self.offset
        self.values += 1
        if self.values > MOST_VALUES:
            self._stop(f"the manifest has more than {MOST_VALUES:,} values", begin)
        character = self.text[begin : begin + 1]
        if character in ("{", "["):
            if len(self.path) >= DEEPEST_NESTING:
                self._stop(f"objects and lists are nested more than {DEEPEST_NESTING} levels deep", begin)
            return self._object() if character == "{" else self._list()
        if character == '"':
            return self._string(), (begin, [])
        return self._scalar(), (begin, [])

    def _object(self) -> tuple[dict[str, Any], Node]:
        begin = self.offset
        members: dict[str, Any] = {}
        nodes: dict[str, Node] = {}
        more = self._opened("}")
        while more:
            where = self.offset
            if self.text[where : where + 1] != '"':
                self._stop(f"expected a key in double quotes{self._instead()}", where)
            key = self._string()
            if len(key) > LONGEST_KEY:
                self._stop(f"a key is longer than {LONGEST_KEY} characters", where)
            self.path.append(key)
            if key in members:
                self._note(f"duplicate key {shown(key)}", where)
            self._skip_blanks()
            if self.text[self.offset : self.offset + 1] != ":":
                self._stop(f"expected ':' after the key{self._instead()}", self.offset)
            self.offset += 1
            self._skip_blanks()
            members[key], nodes[key] = self._value()
            self.path.pop()
            more = self._continued("}")
        return members, (begin, nodes)

    def _list(self) -> tuple[list[Any], Node]:
        begin = self.offset
        items: list[Any] = []
        nodes: list[Node] = []
        more = self._opened("]")
        while more:
            self.path.append(len(items))
            item, node = self._value()
            self.path.pop()
            items.append(item)
            nodes.append(node)
            more = self._continued("]")
        return items, (begin, nodes)

    def _opened(self, closing: str) -> bool:
        """Skip an opening bracket; return whether a member follows."""
        self.offset += 1
        self._skip_blanks()
        if self.text[self.offset : self.offset + 1] == closing:
            self.offset += 1
            return False
        return True

    def _continued(self, closing: str) -> bool:
        """Skip a comma or the closing bracket; return whether another member follows."""
        self._skip_blanks()
        where = self.offset
        character = self.text[where : where + 1]
        if character not in (",", closing):
            self._stop(f"expected ',' or '{closing}'{self._instead()}", where)
        self.offset += 1
        if character == closing:
            return False
        self._skip_blanks()
        if self.text[self.offset : self.offset + 1] == closing:
            self._stop(f"unexpected ',' before '{closing}'", where)
        return True

    def _string(self) -> str:
        begin = self.offset
        match = _TEXT.match(self.text, begin)
        end = match.end() if match else begin
        character = self.text[end : end + 1]
        if not character:
            self._stop("the text that starts here is not closed", begin)
        if character == "\\":
            self._stop(f"{shown(self.text[end : end + 2])} is not a JSON escape", end)
        if character != '"':
            self._stop(f"a text contains the control character U+{ord(character):04X}; write it as an escape", end)
        self.offset = end + 1
        return str(json.loads(self.text[begin : self.offset]))

    def _scalar(self) -> Any:
        begin = self.offset
        word = _WORD.match(self.text, begin)
        if word and word.group() in _LITERALS:
            self.offset = word.end()
            return _LITERALS[word.group()]
        if word and word.group() in _NOT_NUMBERS:
            self.offset = word.end()
            self._note(f"{word.group()} is not JSON; expected a number", begin)
            return 0
        if word:
            self._stop(
                f"expected a value{self._instead()}", begin, _OTHER_WORDS.get(word.group(), f'"{word.group()[:64]}"')
            )
        number = _NUMBER.match(self.text, begin)
        if number is None:
            self._stop(f"expected a value{self._instead()}", begin)
        self.offset = number.end()
        return self._number(number.group(), begin)

    def _number(self, digits: str, begin: int) -> int | float:
        if self.text[self.offset : self.offset + 1].isalnum():
            self._stop("expected a decimal number without leading zeros", begin)
        if len(digits) <= _LONGEST_NUMBER:
            number = float(digits) if set(digits) & set(".eE") else int(digits)
            if math.isfinite(number):
                return number
        self._note("the number is too large or too long", begin)
        return 0

    def _skip_blanks(self) -> None:
        match = _BLANKS.match(self.text, self.offset)
        self.offset = match.end() if match else self.offset

    def _instead(self) -> str:
        """Return the end of a message about the character at the current offset."""
        found = self.text[self.offset : self.offset + 1]
        if not found:
            return ", but the text ends here"
        if self.text[self.offset : self.offset + 2] in ("//", "/*") or found == "#":
            return "; JSON has no comments"
        if found == "'":
            return "; JSON uses double quotes"
        word = _WORD.match(self.text, self.offset)
        return f", got {shown(word.group() if word else found)}"

    def _note(self, message: str, offset: int, suggestion: str | None = None) -> None:
        problem = Problem(pointer_to("", *self.path) if self.path else "", message, suggestion)
        self.problems.append(PlacedProblem.at(problem, _place(self.line_ends, offset)))

    def _stop(self, message: str, offset: int, suggestion: str | None = None) -> NoReturn:
        self._note(message, offset, suggestion)
        raise _NotReadableError


def _decoded(data: bytes | str) -> tuple[str, list[PlacedProblem]]:
    """Return the text without a byte-order mark, and a problem if it has one."""
    size = len(data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    if size > LARGEST_MANIFEST:
        raise ManifestError([Problem("", f"the manifest is larger than {LARGEST_MANIFEST:,} bytes")])
    text = data if isinstance(data, str) else _utf8(bytes(data))
    if not text.startswith(_BOM):
        return text, []
    message = "the text starts with a byte-order mark (U+FEFF); save it as UTF-8 without one"
    return text[1:], [PlacedProblem("", message, line=1, column=1)]


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        begin = data.rfind(b"\n", 0, error.start) + 1
        line = data.count(b"\n", 0, error.start) + 1
        column = len(data[begin : error.start].decode("utf-8")) + 1
        message = f"the text is not UTF-8 (byte 0x{data[error.start]:02x})"
    raise ManifestError([PlacedProblem("", message, line=line, column=column)])


def _child(inner: dict[str, Node] | list[Node], token: str) -> Node | None:
    if isinstance(inner, dict):
        return inner.get(token)
    index = int(token) if _INDEX.fullmatch(token) else len(inner)
    return inner[index] if index < len(inner) else None


def _place(line_ends: list[int], offset: int) -> Place:
    line = bisect_left(line_ends, offset)
    begin = line_ends[line - 1] + 1 if line else 0
    return Place(line + 1, offset - begin + 1)
