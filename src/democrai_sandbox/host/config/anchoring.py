"""Relative paths in a file: they start at its folder, independent of the working directory."""

from __future__ import annotations

from typing import Any

from democrai_sandbox.policy import normalise_path

from .keys import KEYS, NAMED, Form

_DATABASE = "sqlite:///"
_NOT_RELATIVE = ("/", "~", "$", ":memory:", "file:")


def anchored(values: dict[str, Any], folder: str) -> dict[str, Any]:
    """Make the relative paths in ``values`` absolute; leave values that are not paths for the validation to reject."""
    for pointer, form in KEYS.items():
        above, _, last = pointer.rpartition("/")
        _anchor(_at(values, above), last, form, folder)
    for pointer, forms in NAMED.items():
        entries = _at(values, pointer)
        for entry in entries.values() if isinstance(entries, dict) else ():
            for name, form in forms.items():
                _anchor(entry, name, form, folder)
    return values


def _at(values: Any, pointer: str) -> Any:
    """Return the value at a pointer; None without one."""
    for step in pointer.split("/")[1:]:
        values = values.get(step) if isinstance(values, dict) else None
    return values


def _anchor(holder: Any, name: str, form: Form, folder: str) -> None:
    if isinstance(holder, dict) and name in holder:
        holder[name] = _anchored(holder[name], form, folder)


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
