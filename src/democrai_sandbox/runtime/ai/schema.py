"""JSON Schema from a typed signature, and typed values from checked arguments.

Annotations are code of the function's author, so all of this runs inside that subject's guard. Only the schema, which
is plain data, leaves it.
"""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.policy import InvalidInputError, Problem, pointer_to

from .checking import fits

if TYPE_CHECKING:
    from collections.abc import Callable

Schema = dict[str, Any]
Build = typing.Callable[[Any], Any]
_Special = typing.Callable[[tuple[Any, ...], str, int], "Shape"]

_SCALARS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_WRAPPERS = (typing.Required, typing.NotRequired)
_DEEPEST = 12
_LONGEST_DESCRIPTION = 1000
_USABLE = "str, int, float, bool, None, list, dict[str, ...], tuple, Literal, Enum, Union, TypedDict or a dataclass"


class Shape(NamedTuple):
    """Schema of an annotation, and the builder of its values."""

    schema: Schema
    build: Build | None = None
    """Builds the typed value from JSON data that matches the schema; None if they are equal."""


def signature_shape(function: Callable[..., Any]) -> Shape:
    """Return the shape of a function's arguments, as an object by name; raise all problems of the function."""
    reading = _Reading()
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


class _Reading:
    """Reads one signature, and collects its problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def refuse(self, pointer: str, message: str) -> Shape:
        self.problems.append(Problem(pointer, message))
        return Shape({})

    def parameters(self, function: Callable[..., Any]) -> Shape:
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

    def members(self, members: list[_Member], make: Callable[..., Any] | None, pointer: str, depth: int) -> Shape:
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
        return Shape(schema, _members_builder(builds, make) if builds or make else None)

    def of(self, hint: Any, pointer: str, depth: int) -> Shape:
        """Return the shape of an annotation."""
        if depth > _DEEPEST:
            return self.refuse(pointer, "the type is nested too deep, or contains itself")
        scalar = _SCALARS.get(hint) if isinstance(hint, type) else "null" if hint is None else None
        if scalar is not None or hint is Any:
            return Shape({"type": scalar} if scalar else {})
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

    def annotated(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> Shape:
        """Use the first string beside a type as its description."""
        shape = self.of(arguments[0], pointer, depth)
        text = next((str(note) for note in arguments[1:] if type(note) is str), "")
        return shape._replace(schema={**shape.schema, "description": text[:_LONGEST_DESCRIPTION]}) if text else shape

    def choices(self, values: tuple[Any, ...], pointer: str, depth: int) -> Shape:
        del depth
        if any(type(value) not in _SCALARS for value in values):
            return self.refuse(pointer, "choices must be texts, numbers, booleans or None")
        return Shape({"enum": list(values)})

    def union(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> Shape:
        shapes = [self.of(argument, pointer, depth + 1) for argument in arguments]
        schema = {"anyOf": [shape.schema for shape in shapes]}
        return Shape(schema, _union_builder(shapes) if any(shape.build for shape in shapes) else None)

    def collection(self, kind: type, arguments: tuple[Any, ...], pointer: str, depth: int) -> Shape:
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

    def record(self, kind: type, pointer: str, depth: int) -> Shape:
        try:
            members = _fields(kind) if dataclasses.is_dataclass(kind) else _keys(kind)
        except Exception as error:  # noqa: BLE001 - as above
            return self.refuse(pointer, f"an annotation of {_named(kind)} cannot be evaluated: {error}")
        return self.members(members, kind, pointer, depth)

    def items(self, hint: Any, pointer: str, depth: int) -> Shape:
        inner = self.of(hint, pointer_to(pointer, 0), depth + 1)
        build = inner.build
        return Shape(
            {"type": "array", "items": inner.schema},
            None if build is None else lambda value: [build(item) for item in value],
        )

    def sequence(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> Shape:
        if len(arguments) == 2 and arguments[1] is ...:  # noqa: PLR2004 - tuple[T, ...]
            inner = self.items(arguments[0], pointer, depth)
            make = inner.build
            return Shape(inner.schema, tuple if make is None else lambda value: tuple(make(value)))
        shapes = [self.of(hint, pointer_to(pointer, index), depth + 1) for index, hint in enumerate(arguments)]
        schema = {
            "type": "array",
            "prefixItems": [shape.schema for shape in shapes],
            "minItems": len(shapes),
            "maxItems": len(shapes),
        }
        return Shape(schema, _tuple_builder([shape.build for shape in shapes]))

    def mapping(self, arguments: tuple[Any, ...], pointer: str, depth: int) -> Shape:
        if arguments[0] is not str:
            return self.refuse(pointer, "the keys of an object must be texts: use dict[str, ...]")
        inner = self.of(arguments[1], pointer_to(pointer, "*"), depth + 1)
        build = inner.build
        return Shape(
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


def _default(value: Any) -> Schema:
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


def _union_builder(shapes: list[Shape]) -> Build:
    """Return a builder that uses the first matching alternative."""

    def build(value: Any) -> Any:
        shape = next(shape for shape in shapes if fits(value, shape.schema))
        return value if shape.build is None else shape.build(value)

    return build
