"""Suggestions for unknown names and values in calls of the API."""

from __future__ import annotations

import re
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from pydantic import BaseModel

from democrai_sandbox.policy import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from fastapi.dependencies.models import Dependant

_UNKNOWN_NAME = "extra_forbidden"
_UNKNOWN_VALUES = frozenset({"enum", "literal_error"})
_QUOTED = re.compile(r"'([^']*)'")


def suggestion(found: Mapping[str, Any], dependant: Dependant | None) -> str | None:
    """Return the nearest valid name or value for a validation error, or None."""
    if found["type"] in _UNKNOWN_VALUES and isinstance(found.get("input"), str):
        return nearest(found["input"], _QUOTED.findall(str(found.get("ctx", {}).get("expected", ""))))
    source, *place = found["loc"]
    if found["type"] != _UNKNOWN_NAME or dependant is None or not place:
        return None
    fields = dependant.body_params if source == "body" else dependant.query_params
    given = [field.field_info.annotation for field in fields]
    return nearest(str(place[-1]), _names(_inner(given, place[:-1])))


def _inner(given: Iterable[Any], place: Sequence[str | int]) -> list[Any]:
    """Return the types at a place within values of these types."""
    found = list(given)
    for step in place:
        models = [model for kind in found for model in _models(kind)]
        if isinstance(step, str):
            found = [model.model_fields[step].annotation for model in models if step in model.model_fields]
        else:
            found = [inner for kind in found for inner in get_args(kind)]
    return found


def _models(kind: Any) -> list[type[BaseModel]]:
    if get_origin(kind) in (Union, UnionType):
        return [model for inner in get_args(kind) for model in _models(inner)]
    return [kind] if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def _names(kinds: Iterable[Any]) -> list[str]:
    """Return the field names of these types."""
    return [name for kind in kinds for model in _models(kind) for name in model.model_fields]
