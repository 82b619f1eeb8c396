"""Decorators that declare functions of an extension, the served request, and the folders of an extension."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.policy.subjects import CallIdentity
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
    return lambda function: declare("task", name, given(every=every, timeout=timeout), function)


def method(name: str) -> Callable[[Function], Function]:
    """Declare a method of an engine or extractor. A generator is a stream."""
    return lambda function: declare("method", name, {}, function)


def declare(kind: str, name: str, options: dict[str, Any], function: Function) -> Function:
    """Register a function with the runtime; without a runtime, as in a unit test, do nothing.

    Decorators only work while the file of an extension is imported. A function is called with plain data by keyword and
    returns plain data: None, texts, numbers, bytes, lists and dicts. Returned enums, dataclasses, named tuples, dates,
    times, UUIDs, decimals and paths are converted.
    """
    if sdk_services.is_served("declare"):
        sdk_services.call("declare", kind, name, options, function)
    return function


def given(**options: float | None) -> dict[str, Any]:
    """Return the options that have a value."""
    return {name: value for name, value in options.items() if value is not None}


class Request(CallIdentity):
    """Caller of the extension. Missing values are empty: a schedule has no session."""

    __slots__ = ()


def request() -> Request:
    """Return the caller of the current call, as the runtime knows it."""
    return Request(*sdk_services.call("request"))


def data_dir() -> Path:
    """Return the data folder of this extension, the only one it can write without a declaration."""
    return Path(sdk_services.call("places")[0])


def extension_dir() -> Path:
    """Return the folder with this extension's manifest and code, which it can read."""
    return Path(sdk_services.call("places")[1])


def cancelled() -> bool:
    """Return whether this call was canceled. A coroutine is canceled directly; a plain function has to check.

    In the host's own process it is always False for a plain function.
    """
    return bool(sdk_services.is_served("cancelled") and sdk_services.call("cancelled"))
