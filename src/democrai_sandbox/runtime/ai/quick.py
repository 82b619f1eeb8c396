"""Fast path for checking arguments: accepts matching arguments without collecting problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .checking import check_arguments, fits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def argument_check(schema: Mapping[str, Any]) -> Callable[[Any], None]:
    """Return a function that refuses arguments like ``check_arguments``."""
    properties, required = schema.get("properties", {}), tuple(schema.get("required", ()))
    members = {name: _member(inner) for name, inner in properties.items()}
    closed = schema.get("additionalProperties") is False

    def check(given: Any) -> None:
        if closed and type(given) is dict and _fit(given, members, required):
            return
        check_arguments(given, schema)

    return check


def _fit(given: dict[str, Any], members: Mapping[str, Any], required: tuple[str, ...]) -> bool:
    for name in required:
        if name not in given:
            return False
    for name, value in given.items():
        member = members.get(name)
        if member is None:
            return False
        kinds, schema = member
        if type(value) not in kinds if schema is None else not fits(value, schema):
            return False
    return True


def _member(schema: Mapping[str, Any]) -> tuple[tuple[type, ...], Mapping[str, Any] | None]:
    """Return the types of a scalar; otherwise its schema."""
    kinds = _SCALARS.get(schema.get("type", "")) if "anyOf" not in schema and "enum" not in schema else None
    return ((), schema) if kinds is None else (kinds, None)
