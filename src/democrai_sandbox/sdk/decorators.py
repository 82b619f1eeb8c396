"""Decorators that declare functions of an extension. They only work while its file is imported.

A function is called with plain data by keyword and returns plain data: None, texts, numbers, bytes, lists and dicts.
Returned enums, dataclasses, named tuples, dates, times, UUIDs, decimals and paths are converted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.runtime import sdk_services

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")


def render(function: Function) -> Function:
    """Declare the function that returns the module's rendered output."""
    return declare("render", "render", {}, function)


def action(name: str) -> Callable[[Function], Function]:
    """Declare an action of the module, which a user triggers."""
    return lambda function: declare("action", name, {}, function)


def command(name: str) -> Callable[[Function], Function]:
    """Declare a command of the module."""
    return lambda function: declare("command", name, {}, function)


def task(name: str, *, every: float | None = None, timeout: float | None = None) -> Callable[[Function], Function]:
    """Declare a background task of the module, started by name; with ``every``, also run at this period in seconds."""
    options = {key: value for key, value in (("every", every), ("timeout", timeout)) if value is not None}
    return lambda function: declare("task", name, options, function)


def method(name: str) -> Callable[[Function], Function]:
    """Declare a method of an engine or extractor. A generator is a stream."""
    return lambda function: declare("method", name, {}, function)


def declare(kind: str, name: str, options: dict[str, Any], function: Function) -> Function:
    """Register a function with the runtime; without a runtime, as in a unit test, do nothing."""
    if sdk_services.is_served("declare"):
        sdk_services.call("declare", kind, name, options, function)
    return function
