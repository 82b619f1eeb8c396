"""JSON Schema from a typed signature, validation of arguments against it, and typed values from checked arguments."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

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

_SCALAR_TYPES = {name: kinds for name, (kinds, _) in _TYPES.items() if name not in ("array", "object")}


def check_arguments(value: object, schema: Schema) -> None:
    """Refuse arguments that do not match, and report all problems; ``value`` is plain data."""
    found = list(islice(problems(value, schema, ""), MOST_PROBLEMS))
    if found:
        raise InvalidInputError(found)


def argument_check(schema: Schema) -> Callable[[Any], None]:
    """Return ``check_arguments`` for a schema; matching scalars pass at once, because every tool call is checked."""
    closed, required = schema.get("additionalProperties") is False, frozenset(schema.get("required", ()))
    kinds = {name: _scalar_types(inner) for name, inner in schema.get("properties", {}).items()}

    def check(given: Any) -> None:
        if closed and type(given) is dict and required <= given.keys():
            for name, value in given.items():
                if type(value) not in kinds.get(name, ()):
                    break
            else:
                return
        check_arguments(given, schema)

    return check


def _scalar_types(schema: Schema) -> tuple[type, ...]:
    """Return the types of a scalar, and none for other schemas."""
    return () if "anyOf" in schema or "enum" in schema else _SCALAR_TYPES.get(schema.get("type", ""), ())


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
            if type(item) not in _scalar_types(properties[name]):
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


JsonSchema = dict[str, Any]
Build = typing.Callable[[Any], Any]
_Special = typing.Callable[[tuple[Any, ...], str, int], "SignatureShape"]

_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_WRAPPERS = (typing.Required, typing.NotRequired)
_DEEPEST_SIGNATURE = 12
_LONGEST_DESCRIPTION = 1000
_USABLE = "str, int, float, bool, None, list, dict[str, ...], tuple, Literal, Enum, Union, TypedDict or a dataclass"


class SignatureShape(NamedTuple):
    """Schema of an annotation, and the builder of its values."""

    schema: JsonSchema
    build: Build | None = None
    """Builds the typed value from JSON data that matches the schema; None if they are equal."""


def signature_shape(function: Callable[..., Any]) -> SignatureShape:
    """Return the shape of a function's arguments, as an object by name; raise all problems of the function."""
    reading = _SignatureReader()
    shape = reading.parameters(function)
    if reading.problems:
        raise InvalidInputError(reading.problems)
    description = summary(function)
    return shape._replace(schema={**shape.schema, "description": description}) if description else shape


def summary(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a docstring, on one line."""
    text = inspect.getdoc(function) or ""
    return " ".join(text.partition("\n\n")[0].split())[:_LONGEST_DESCRIPTION]


class _Member(NamedTuple):
    """One parameter, or one member of an object."""

    name: str
    hint: Any
    required: bool
    default: Any = dataclasses.MISSING


class _SignatureReader:
    """Reads one signature, and collects its problems.

    Annotations are code of the function's author, so it runs inside that subject's guard. Only the schema,
    which is plain data, leaves it.
    """

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def refuse(self, pointer: str, message: str) -> SignatureShape:
        self.problems.append(Problem(pointer, message))
        return SignatureShape({})

    def parameters(self, function: Callable[..., Any]) -> SignatureShape:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except Exception as error:  # noqa: BLE001 - evaluating an annotation can raise anything
            return self.refuse("", f"an annotation cannot be evaluated: {type(error).__name__}: {error}")
        members = []
        for name, parameter in inspect.signature(function).parameters.items():
            pointer = pointer_to("", name)
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                self.refuse(
                    pointer, "arguments are passed by name: *, ** and positional-only parameters are not supported"
                )
            elif name not in hints:
                self.refuse(pointer, f"the parameter has no type; use {_USABLE}")
            else:
                required = parameter.default is parameter.empty
                default = dataclasses.MISSING if required else parameter.default
                members.append(_Member(name, hints[name], required, default))
        return self.members(members, None, "", 0)

    def members(
        self, members: list[_Member], make: Callable[..., Any] | None, pointer: str, depth: int
    ) -> SignatureShape:
        """Return an object with exactly these members."""
        properties, builds = {}, {}
        for member in members:
            shape = self.of(member.hint, pointer_to(pointer, member.name), depth + 1)
            properties[member.name] = {**shape.schema, **_default(member.default)}
            if shape.build is not None:
                builds[member.name] = shape.build
        schema = {
            "type": "object",
            "properties": properties,
            "required": [member.name for member in members if member.required],
            "additionalProperties": False,
        }
        return SignatureShape(schema, _members_builder(builds, make) if builds or make else None)

    def of(self, hint: Any, pointer: str, depth: int) -> SignatureShape:
        if depth > _DEEPEST_SIGNATURE:
            return self.refuse(pointer, "the type is nested too deep, or contains itself")
        scalar = _SCALARS.get(hint) if isinstance(hint, type) else "null" if hint is None else None
        if scalar is not None or hint is Any:
            return SignatureShape({"type": scalar} if scalar else {})
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in _WRAPPERS:
            return self.of(arguments[0], pointer, depth)
        special = self._special(origin)
        if special is not None:
            return special(arguments, pointer, depth)
        if isinstance(origin or hint, type):
            return self.collection(origin or hint, arguments, pointer, depth)
        return self.refuse(pointer, f"{_named(hint)} cannot be expressed in JSON; use {_USABLE}")

    def _special(self, origin: Any) -> _Special | None:
        """Return the reader of a ``typing`` form that is not a class."""
        if origin in (typing.Union, types.UnionType):
            return self.union
        return {typing.Annotated: self.annotated, typing.Literal: self.choices}.get(origin)

    def annotated(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> SignatureShape:
        """Use the first string beside a type as its description."""
        shape = self.of(arguments[0], pointer, depth)
        text = next((str(note) for note in arguments[1:] if type(note) is str), "")
        return shape._replace(schema={**shape.schema, "description": text[:_LONGEST_DESCRIPTION]}) if text else shape

    def choices(self, values: tuple[Any, ...], pointer: str, depth: int) -> SignatureShape:
        del depth
        if any(type(value) not in _SCALARS for value in values):
            return self.refuse(pointer, "choices must be texts, numbers, booleans or None")
        return SignatureShape({"enum": list(values)})

    def union(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> SignatureShape:
        shapes = [self.of(argument, pointer, depth + 1) for argument in arguments]
        schema = {"anyOf": [shape.schema for shape in shapes]}
        return SignatureShape(schema, _union_builder(shapes) if any(shape.build for shape in shapes) else None)

    def collection(self, kind: type, arguments: tuple[Any, ...], pointer: str, depth: int) -> SignatureShape:
        if kind is list:
            return self.items(arguments[0] if arguments else Any, pointer, depth)
        if kind is tuple and arguments:
            return self.sequence(arguments, pointer, depth)
        if kind is dict:
            return self.mapping(arguments or (str, Any), pointer, depth)
        if issubclass(kind, Enum):
            return self.choices(tuple(member.value for member in kind), pointer, depth)._replace(build=kind)
        if typing.is_typeddict(kind) or dataclasses.is_dataclass(kind):
            return self.record(kind, pointer, depth)
        return self.refuse(pointer, f"{_named(kind)} cannot be expressed in JSON; use {_USABLE}")

    def record(self, kind: type, pointer: str, depth: int) -> SignatureShape:
        try:
            members = _fields(kind) if dataclasses.is_dataclass(kind) else _keys(kind)
        except Exception as error:  # noqa: BLE001 - as above
            return self.refuse(pointer, f"an annotation of {_named(kind)} cannot be evaluated: {error}")
        return self.members(members, kind, pointer, depth)

    def items(self, hint: Any, pointer: str, depth: int) -> SignatureShape:
        inner = self.of(hint, pointer_to(pointer, 0), depth + 1)
        build = inner.build
        return SignatureShape(
            {"type": "array", "items": inner.schema},
            None if build is None else lambda value: [build(item) for item in value],
        )

    def sequence(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> SignatureShape:
        if len(arguments) == 2 and arguments[1] is ...:  # noqa: PLR2004 - tuple[T, ...]
            inner = self.items(arguments[0], pointer, depth)
            make = inner.build
            return SignatureShape(inner.schema, tuple if make is None else lambda value: tuple(make(value)))
        shapes = [self.of(hint, pointer_to(pointer, index), depth + 1) for index, hint in enumerate(arguments)]
        schema = {
            "type": "array",
            "prefixItems": [shape.schema for shape in shapes],
            "minItems": len(shapes),
            "maxItems": len(shapes),
        }
        return SignatureShape(schema, _tuple_builder([shape.build for shape in shapes]))

    def mapping(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> SignatureShape:
        if arguments[0] is not str:
            return self.refuse(pointer, "the keys of an object must be texts: use dict[str, ...]")
        inner = self.of(arguments[1], pointer_to(pointer, "*"), depth + 1)
        build = inner.build
        return SignatureShape(
            {"type": "object", "additionalProperties": inner.schema},
            None if build is None else lambda value: {key: build(item) for key, item in value.items()},
        )


def _keys(kind: Any) -> list[_Member]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [_Member(key, hint, _is_required(key, hint, kind)) for key, hint in hints.items()]


def _is_required(key: str, hint: Any, kind: Any) -> bool:
    """Return whether a key is required, from the evaluated hint: the class does not evaluate string annotations."""
    origin = typing.get_origin(hint)
    return origin is typing.Required if origin in _WRAPPERS else key in kind.__required_keys__


def _fields(kind: Any) -> list[_Member]:
    hints = typing.get_type_hints(kind, include_extras=True)
    missing = dataclasses.MISSING
    return [
        _Member(field.name, hints[field.name], field.default is missing and field.default_factory is missing)
        for field in dataclasses.fields(kind)
        if field.init
    ]


def _default(value: Any) -> JsonSchema:
    """Return the default for a schema; empty for values that are not plain scalars."""
    value = value.value if isinstance(value, Enum) else value
    return {"default": value} if type(value) in _SCALARS else {}


def _named(hint: Any) -> str:
    return str(getattr(hint, "__name__", None) or hint)[:80]


def _members_builder(builds: dict[str, Build], make: Callable[..., Any] | None) -> Build:
    def build(value: dict[str, Any]) -> Any:
        made = {key: builds[key](item) if key in builds else item for key, item in value.items()}
        return made if make is None else make(**made)

    return build


def _tuple_builder(builds: list[Build | None]) -> Build:
    def build(value: list[Any]) -> tuple[Any, ...]:
        return tuple(item if make is None else make(item) for make, item in zip(builds, value, strict=True))

    return build


def _union_builder(shapes: list[SignatureShape]) -> Build:
    """Return a builder that uses the first matching alternative."""

    def build(value: Any) -> Any:
        shape = next(shape for shape in shapes if fits(value, shape.schema))
        return value if shape.build is None else shape.build(value)

    return build
