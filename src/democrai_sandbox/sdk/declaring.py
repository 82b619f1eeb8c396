"""Decorators by which an extension offers functions. They are read while its file is imported, and only then.

A function is called with plain data by keyword and returns plain data: None, texts, numbers, bytes, lists and dicts.
Enums, dataclasses, named tuples, dates, times, UUIDs, decimals and paths that it returns are converted to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.runtime import doors

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")


def render(function: Function) -> Function:
    """Declare the function that returns what the module shows."""
    return declare("render", "render", {}, function)


def action(name: str) -> Callable[[Function], Function]:
    """Declare an action of the module: something a user does."""
    return lambda function: declare("action", name, {}, function)


def command(name: str) -> Callable[[Function], Function]:
    """Declare a command of the module."""
    return lambda function: declare("command", name, {}, function)


def task(name: str, *, every: float | None = None, timeout: float | None = None) -> Callable[[Function], Function]:
    """Declare a background task of the module, to be started by name; with ``every``, also run each so many seconds."""
    options = {key: value for key, value in (("every", every), ("timeout", timeout)) if value is not None}
    return lambda function: declare("task", name, options, function)


def method(name: str) -> Callable[[Function], Function]:
    """Declare a method of an engine or extractor. One that yields is a stream."""
    return lambda function: declare("method", name, {}, function)


def declare(kind: str, name: str, options: dict[str, Any], function: Function) -> Function:
    """Tell the runtime about a function, where there is one: a file that is imported by a test just has functions."""
    if doors.is_served("declare"):
        doors.call("declare", kind, name, options, function)
    return function
