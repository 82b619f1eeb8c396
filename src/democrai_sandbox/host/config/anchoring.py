"""Relative paths of a file: they begin at its folder, wherever the application is started."""

from __future__ import annotations

from typing import Any

from democrai_sandbox.policy import normalise_path

from .keys import KEYS, Form

_DATABASE = "sqlite:///"
_NOT_RELATIVE = ("/", "~", "$", ":memory:", "file:")


def anchored(values: dict[str, Any], folder: str) -> dict[str, Any]:
    """Make the relative paths in ``values`` absolute; what is no path is left for the reading to refuse."""
    for pointer, form in KEYS.items():
        *above, last = pointer.split("/")[1:]
        holder: Any = values
        for step in above:
            holder = holder.get(step) if isinstance(holder, dict) else None
        if isinstance(holder, dict) and last in holder:
            holder[last] = _anchored(holder[last], form, folder)
    return values


def _anchored(value: Any, form: Form, folder: str) -> Any:
    if form is Form.PATHS and isinstance(value, list):
        return [_path(item, folder) for item in value]
    if form is Form.PATH:
        return _path(value, folder)
    if form is Form.DATABASE and isinstance(value, str) and value.startswith(_DATABASE):
        return _DATABASE + _path(value.removeprefix(_DATABASE), folder)
    return value


def _path(value: Any, folder: str) -> Any:
    if not isinstance(value, str) or not value or "\0" in value or value.startswith(_NOT_RELATIVE):
        return value
    return normalise_path(f"{folder}/{value}")
