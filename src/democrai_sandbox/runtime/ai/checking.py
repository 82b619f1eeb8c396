"""Validation of arguments against exactly the schemas that ``schema`` derives.

Arguments from a model, another module or a pipeline are checked here before any code of the tool reads them.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import InvalidInputError, Problem, nearest, pointer_to
from democrai_sandbox.policy.text import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Schema = Mapping[str, Any]

MOST_PROBLEMS = 20
_DEEPEST = 32

_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "string": ((str,), "a text"),
    "integer": ((int,), "a whole number"),
    "number": ((int, float), "a number"),
    "boolean": ((bool,), "true or false"),
    "null": ((type(None),), "null"),
    "array": ((list, tuple), "a list"),
    "object": ((dict,), "an object"),
}


def check_arguments(value: object, schema: Schema) -> None:
    """Refuse arguments that do not match, and report all problems; ``value`` is plain data."""
    found = list(islice(problems(value, schema, ""), MOST_PROBLEMS))
    if found:
        raise InvalidInputError(found)


def fits(value: object, schema: Schema) -> bool:
    """Return whether plain data matches a schema."""
    return next(problems(value, schema, ""), None) is None


def problems(value: Any, schema: Schema, pointer: str) -> Iterator[Problem]:
    """Yield the problems of plain data, each with its location."""
    if "anyOf" in schema:
        yield from _any_of(value, schema["anyOf"], pointer)
    elif "enum" in schema:
        # Compare types as well, because True equals 1 in Python.
        if not any(type(choice) is type(value) and choice == value for choice in schema["enum"]):
            choices = ", ".join(map(_told, schema["enum"]))
            suggestion = nearest(value, filter(_is_text, schema["enum"])) if type(value) is str else None
            yield Problem(pointer, f"expected one of {choices}, got {_told(value)}", suggestion)
    elif "type" in schema:
        kinds, expected = _TYPES[schema["type"]]
        if type(value) not in kinds:
            yield Problem(pointer, f"expected {expected}, got {_told(value)}")
        elif kinds == (dict,):
            yield from _members(value, schema, pointer)
        elif list in kinds:
            yield from _items(value, schema, pointer)


def _any_of(value: Any, alternatives: list[Schema], pointer: str) -> Iterator[Problem]:
    """Yield the problems for the alternative of the value's type, if it is the only one of that type."""
    if any(fits(value, alternative) for alternative in alternatives):
        return
    meant = [one for one in alternatives if type(value) in _TYPES.get(one.get("type", ""), ((), ""))[0]]
    if len(meant) == 1:
        yield from problems(value, meant[0], pointer)
    else:
        expected = " or ".join(_expected(one) for one in alternatives)
        yield Problem(pointer, f"expected {expected}, got {_told(value)}")


def _members(value: dict[str, Any], schema: Schema, pointer: str) -> Iterator[Problem]:
    properties = schema.get("properties", {})
    further = schema.get("additionalProperties", True)
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem(pointer, f"'{name}' is missing")
    for name, item in value.items():
        if name in properties:
            yield from problems(item, properties[name], pointer_to(pointer, name))
        elif further is False:
            absent = [known for known in properties if known not in value]
            yield Problem(pointer_to(pointer, name), f"unknown name {shown(name)}", nearest(name, absent))
        elif further is not True:
            yield from problems(item, further, pointer_to(pointer, name))


def _items(value: list[Any], schema: Schema, pointer: str) -> Iterator[Problem]:
    least, most = schema.get("minItems", 0), schema.get("maxItems", len(value))
    if not least <= len(value) <= most:
        yield Problem(pointer, f"expected {least} items, got {len(value)}")
        return
    each = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
    for index, (item, inner) in enumerate(zip(value, each, strict=False)):
        yield from problems(item, inner, pointer_to(pointer, index))


def _expected(schema: Schema) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(map(_told, schema["enum"]))
    return _TYPES[schema["type"]][1] if "type" in schema else "something else"


def _is_text(value: object) -> bool:
    return type(value) is str


def _told(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if type(value) in (int, float):
        return str(value)[:40]
    if type(value) in (dict, list, tuple):
        return "an object" if type(value) is dict else "a list"
    return shown(value)


# ---- schemas of modules ----------------------------------------------------------------------------------------------


def check_schema(schema: object, pointer: str = "", depth: int = 0) -> None:
    """Refuse a schema that ``schema`` would not derive, because modules pass in their own schemas."""
    if type(schema) is not dict or depth > _DEEPEST:
        raise InvalidInputError.of("expected a JSON Schema derived from a signature", pointer=pointer)
    for key, value in schema.items():
        place = pointer_to(pointer, key)
        check = _KEYWORDS.get(key)
        if check is None or not check(value, place, depth):
            raise InvalidInputError.of(f"{shown(key)} is not valid here in a derived schema", pointer=place)


def _is_schema(value: object, pointer: str, depth: int) -> bool:
    check_schema(value, pointer, depth + 1)
    return True


def _is_schemas(value: object, pointer: str, depth: int) -> bool:
    return type(value) is list and all(
        _is_schema(one, pointer_to(pointer, index), depth) for index, one in enumerate(value)
    )


def _is_properties(value: object, pointer: str, depth: int) -> bool:
    return type(value) is dict and all(_is_schema(one, pointer_to(pointer, name), depth) for name, one in value.items())


_KEYWORDS: dict[str, Callable[[Any, str, int], bool]] = {
    "type": lambda value, *_: type(value) is str and value in _TYPES,
    "description": lambda value, *_: type(value) is str,
    "default": lambda value, *_: type(value) not in (dict, list, tuple, bytes),
    "enum": lambda value, *_: type(value) is list and all(type(one) not in (dict, list, tuple, bytes) for one in value),
    "required": lambda value, *_: type(value) is list and all(map(_is_text, value)),
    "minItems": lambda value, *_: type(value) is int,
    "maxItems": lambda value, *_: type(value) is int,
    "properties": _is_properties,
    "additionalProperties": lambda value, *where: type(value) is bool or _is_schema(value, *where),
    "items": _is_schema,
    "prefixItems": _is_schemas,
    "anyOf": _is_schemas,
}
