"""Shapes of values that the policy package parses: access entries, import roots and endpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import (
    VALID_OPERATIONS,
    AccessRule,
    InvalidInputError,
    ResourceType,
    Subject,
    SubjectKind,
    compile_policy,
    parse_access,
    parse_request_url,
)
from democrai_sandbox.policy.rules import KEYS
from democrai_sandbox.policy.text import shown

from .shapes import described

if TYPE_CHECKING:
    from .shapes import Reading

# Placeholder subject for the policy's check of import roots.
_NOBODY = Subject(SubjectKind.CORE, "manifest")


@dataclass(frozen=True, slots=True)
class Imports:
    """Roots of sensitive imports."""

    def read(self, value: Any, pointer: str, reading: Reading) -> tuple[str, ...]:
        """Return the roots in order."""
        if type(value) is not list:
            reading.refuse(pointer, f"expected a list of import roots, got {described(value)}")
            return ()
        try:
            compile_policy(subject=_NOBODY, rules=(), allowed_imports=value)
        except InvalidInputError as error:
            reading.take(error.problems, pointer.removesuffix("/allowed_imports"))
            return ()
        return tuple(dict.fromkeys(value))

    def plain(self, value: tuple[str, ...]) -> list[str]:
        """Return the list."""
        return list(value)

    def schema(self) -> dict[str, Any]:
        """Return a pattern without dots, blanks and punctuation. It does not list existing names."""
        return {"type": "array", "items": {"type": "string", "pattern": r"^[^\u0000-\u002f\u003a-\u0040\s.]+$"}}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """HTTP URL. It may have a query, which is not checked."""

    longest: int = 2000

    def read(self, value: Any, pointer: str, reading: Reading) -> str:
        """Return the URL as written."""
        if type(value) is not str or not value:
            got = "an empty text" if value == "" else described(value)
            reading.refuse(pointer, f"expected an http or https URL, got {got}")
            return ""
        if len(value) > self.longest:
            reading.refuse(pointer, f"expected a URL of at most {self.longest} characters, got {len(value)}")
            return ""
        try:
            target = parse_request_url(value)
        except InvalidInputError as error:
            reading.take(error.problems, pointer)
            return ""
        if target.scheme not in ("http", "https"):
            reading.refuse(pointer, f"expected an http or https URL, got the scheme {shown(target.scheme)}")
        elif target.ambiguous or "#" in value or "//" in value.partition("://")[2].partition("?")[0]:
            reading.refuse(pointer, "the URL has a fragment, or a path that servers read in different ways")
        return value

    def plain(self, value: str) -> str:
        """Return the URL."""
        return value

    def schema(self) -> dict[str, Any]:
        """Return a pattern of the URL."""
        return {
            "type": "string",
            "maxLength": self.longest,
            "pattern": r"^[hH][tT][tT][pP][sS]?://[^/?#\s\\@]+(?:[/?][^#\s\\]*)?$",
        }


@dataclass(frozen=True, slots=True)
class Access:
    """List of access entries."""

    def read(self, value: Any, pointer: str, reading: Reading) -> tuple[AccessRule, ...]:
        """Return the rules of the list."""
        if type(value) is not list:
            reading.refuse(pointer, f"expected a list of access entries, got {described(value)}")
            return ()
        try:
            return parse_access(value, base=reading.folder, pointer=pointer)
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
    operation = {"enum": [str(operation) for operation in VALID_OPERATIONS[kind]]}
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
