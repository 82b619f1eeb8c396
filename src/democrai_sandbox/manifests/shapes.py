"""Shapes of values in a manifest: each parses a value, serializes it, and describes itself as JSON Schema."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from democrai_sandbox import policy
from democrai_sandbox.policy import AccessRule, InvalidInputError, Problem, ResourceType, nearest, pointer_to
from democrai_sandbox.policy.rules import KEYS
from democrai_sandbox.policy.text import invisible_character, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(slots=True)
class ParseState:
    """State of parsing one manifest: the problems so far, and the base folder of relative paths."""

    folder: str | None = None
    name: str = ""
    """Default name of an extension whose manifest has none; empty if unknown."""
    problems: list[Problem] = field(default_factory=list)

    def refuse(self, pointer: str, message: str, suggestion: str | None = None) -> None:
        """Record that a value is invalid. The shape's return value is then never used."""
        self.problems.append(Problem(pointer, message, suggestion))

    def take(self, problems: Iterable[Problem], pointer: str = "") -> None:
        """Record problems that another parser found, with pointers relative to ``pointer``."""
        self.problems += [problem.moved(pointer) for problem in problems]


class ValueShape(ABC):
    """Shape of a value in a manifest."""

    __slots__ = ()

    @abstractmethod
    def read(self, value: Any, pointer: str, reading: ParseState) -> Any:
        """Return the value for the model; problems are recorded in ``reading``."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return a JSON Schema that accepts every valid value."""

    def plain(self, value: Any) -> Any:
        """Return the value of a model as JSON data, which ``read`` parses to an equal one; a tuple becomes a list."""
        return list(value) if isinstance(value, tuple) else value


def described(value: object) -> str:
    """Return a value in JSON terms, for an error message."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return shown(value)


@dataclass(frozen=True, slots=True)
class TextShape(ValueShape):
    """Visible text on one line."""

    what: str
    longest: int
    pattern: str = r"[^\u0000-\u001f\u007f]+"
    """Pattern of the whole text, in the syntax that Python and JSON Schema share."""
    mend: Callable[[str], str] | None = None
    """Function that turns an invalid text into the probably intended one."""

    def read(self, value: Any, pointer: str, reading: ParseState) -> str:
        """Return the text."""
        if type(value) is not str:
            reading.refuse(pointer, f"expected {self.what}, got {described(value)}")
        elif not value:
            reading.refuse(pointer, f"expected {self.what}, got an empty text")
        elif len(value) > self.longest:
            reading.refuse(pointer, f"expected {self.what} of at most {self.longest} characters, got {len(value)}")
        elif character := invisible_character(value):
            reading.refuse(pointer, f"expected {self.what}; it contains the invisible character {character}")
        elif not re.fullmatch(self.pattern, value):
            reading.refuse(pointer, f"expected {self.what}, got {shown(value)}", self._mended(value))
        else:
            return value
        return ""

    def _mended(self, value: str) -> str | None:
        mended = self.mend(value)[: self.longest] if self.mend else ""
        return mended if re.fullmatch(self.pattern, mended) else None

    def schema(self) -> dict[str, Any]:
        """Return the length and the pattern."""
        return {"type": "string", "minLength": 1, "maxLength": self.longest, "pattern": f"^(?:{self.pattern})$"}


@dataclass(frozen=True, slots=True)
class ChoiceShape(ValueShape):
    """One of a few names."""

    names: type[Any]
    """Enumeration of texts."""
    other_names: Mapping[str, str] = field(default_factory=dict)
    """Names that other systems use. They are only hints in errors, never accepted."""

    def read(self, value: Any, pointer: str, reading: ParseState) -> Any:
        """Return the member of the enumeration."""
        names = [str(name) for name in self.names]
        if type(value) is str and value in names:
            return self.names(value)
        word = value.lower() if type(value) is str else ""
        suggestion = self.other_names.get(word) or nearest(word, names)
        reading.refuse(pointer, f"expected one of {', '.join(names)}, got {described(value)}", suggestion)
        return None

    def plain(self, value: Any) -> str:
        """Return the name."""
        return str(value)

    def schema(self) -> dict[str, Any]:
        """Return the names."""
        return {"enum": [str(name) for name in self.names]}


@dataclass(frozen=True, slots=True)
class FlagShape(ValueShape):
    """Boolean."""

    def read(self, value: Any, pointer: str, reading: ParseState) -> bool:
        """Return the flag; a text such as "false" would count as true and is rejected."""
        if type(value) is bool:
            return value
        word = value.strip().lower() if type(value) is str else ""
        suggestion = word if word in ("true", "false") else None
        reading.refuse(pointer, f"expected true or false, got {described(value)}", suggestion)
        return False

    def schema(self) -> dict[str, Any]:
        """Return the type."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class NumberShape(ValueShape):
    """Integer within limits."""

    least: int
    most: int

    def read(self, value: Any, pointer: str, reading: ParseState) -> int:
        """Return the number. ``30.0`` is valid, as in JSON Schema."""
        whole = int(value) if type(value) is float and value.is_integer() else value
        if type(whole) is int and self.least <= whole <= self.most:
            return whole
        got = str(value) if type(value) in (int, float) else described(value)
        reading.refuse(pointer, f"expected a whole number from {self.least:,} to {self.most:,}, got {got}")
        return 0

    def schema(self) -> dict[str, Any]:
        """Return the limits."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True)
class TextListShape(ValueShape):
    """List of texts of one shape; duplicates are dropped."""

    item: TextShape

    def read(self, value: Any, pointer: str, reading: ParseState) -> tuple[str, ...]:
        """Return the texts in order."""
        if type(value) is not list:
            reading.refuse(pointer, f"expected a list, each item {self.item.what}; got {described(value)}")
            return ()
        found = [self.item.read(item, pointer_to(pointer, index), reading) for index, item in enumerate(value)]
        return tuple(dict.fromkeys(found))

    def schema(self) -> dict[str, Any]:
        """Return the shape of the items."""
        return {"type": "array", "items": self.item.schema()}


# Placeholder subject for the policy's check of import roots.
_NOBODY = policy.Subject(policy.SubjectKind.CORE, "manifest")


@dataclass(frozen=True, slots=True)
class ImportsShape(ValueShape):
    """Roots of sensitive imports."""

    def read(self, value: Any, pointer: str, reading: ParseState) -> tuple[str, ...]:
        """Return the roots in order."""
        if type(value) is not list:
            reading.refuse(pointer, f"expected a list of import roots, got {described(value)}")
            return ()
        try:
            policy.compile_policy(subject=_NOBODY, rules=(), allowed_imports=value)
        except InvalidInputError as error:
            reading.take(error.problems, pointer.removesuffix("/allowed_imports"))
            return ()
        return tuple(dict.fromkeys(value))

    def schema(self) -> dict[str, Any]:
        """Return a pattern without dots, blanks and punctuation. It does not list existing names."""
        return {"type": "array", "items": {"type": "string", "pattern": r"^[^\u0000-\u002f\u003a-\u0040\s.]+$"}}


@dataclass(frozen=True, slots=True)
class EndpointShape(ValueShape):
    """HTTP URL. It may have a query, which is not checked."""

    longest: int = 2000

    def read(self, value: Any, pointer: str, reading: ParseState) -> str:
        """Return the URL as written."""
        if type(value) is not str or not value:
            got = "an empty text" if value == "" else described(value)
            reading.refuse(pointer, f"expected an http or https URL, got {got}")
            return ""
        if len(value) > self.longest:
            reading.refuse(pointer, f"expected a URL of at most {self.longest} characters, got {len(value)}")
            return ""
        try:
            target = policy.parse_request_url(value)
        except InvalidInputError as error:
            reading.take(error.problems, pointer)
            return ""
        if target.scheme not in ("http", "https"):
            reading.refuse(pointer, f"expected an http or https URL, got the scheme {shown(target.scheme)}")
        elif target.ambiguous or "#" in value or "//" in value.partition("://")[2].partition("?")[0]:
            reading.refuse(pointer, "the URL has a fragment, or a path that servers read in different ways")
        return value

    def schema(self) -> dict[str, Any]:
        """Return a pattern of the URL."""
        return {
            "type": "string",
            "maxLength": self.longest,
            "pattern": r"^[hH][tT][tT][pP][sS]?://[^/?#\s\\@]+(?:[/?][^#\s\\]*)?$",
        }


@dataclass(frozen=True, slots=True)
class AccessShape(ValueShape):
    """List of access entries."""

    def read(self, value: Any, pointer: str, reading: ParseState) -> tuple[AccessRule, ...]:
        """Return the rules of the list."""
        if type(value) is not list:
            reading.refuse(pointer, f"expected a list of access entries, got {described(value)}")
            return ()
        try:
            return policy.parse_access(value, base=reading.folder, pointer=pointer)
        except InvalidInputError as error:
            reading.take(error.problems)
        return ()

    def plain(self, value: tuple[AccessRule, ...] | None) -> list[dict[str, str]]:
        """Return one entry for each rule, with absolute paths."""
        return [rule.to_dict() for rule in value or ()]

    def schema(self) -> dict[str, Any]:
        """Return a reference to the shared definition of an entry."""
        return {"type": "array", "items": {"$ref": "#/$defs/access_entry"}}


_TARGETS = {
    ResourceType.NETWORK: (
        r"^[^\u0000-\u0020\u007f\\]+$",
        "A URL such as https://api.example.com/v1, host, host:port, *.domain, address range, or unix:/path.",
    ),
    ResourceType.FILESYSTEM: (
        r"^[^~\u0000-\u001f\u007f][^\u0000-\u001f\u007f]*$",
        "A file, or a folder with its content; relative to the manifest's folder unless absolute. No wildcards.",
    ),
    ResourceType.SYSTEM_DEPENDENCY: (
        r"^[^\u0000-\u0020\u007f](?:[^\u0000-\u001f\u007f]*[^\u0000-\u0020\u007f])?$",
        "The name of an external program or library.",
    ),
}


def access_entry_schema() -> dict[str, Any]:
    """Return the JSON Schema of one entry of an ``access`` list."""
    return {
        "type": "object",
        "required": list(KEYS),
        "additionalProperties": False,
        "properties": {
            "resource_type": {"enum": [str(kind) for kind in ResourceType]},
            "operation": True,
            "target": {"type": "string", "minLength": 1},
        },
        "allOf": [_entry_of(kind) for kind in ResourceType],
    }


def _entry_of(kind: ResourceType) -> dict[str, Any]:
    operation = {"enum": [str(operation) for operation in policy.VALID_OPERATIONS[kind]]}
    pattern, description = _TARGETS[kind]
    return {
        "if": {"properties": {"resource_type": {"const": str(kind)}}, "required": ["resource_type"]},
        "then": {
            "properties": {
                "operation": {"anyOf": [operation, {"type": "array", "minItems": 1, "items": operation}]},
                "target": {"pattern": pattern, "description": description},
            }
        },
    }
