"""Calls of engines and extractors, and the configuration of an engine itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from democrai_sandbox.runtime import sdk_services

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Kind = Literal["engine", "extractor"]


async def call(
    name: str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    kind: Kind = "engine",
    timeout: float | None = None,  # noqa: ASYNC109 - the engine's process enforces it
) -> Any:
    """Call a method of an engine or extractor; it runs in a separate process, under its own declarations.

    Its call chain begins with the caller: ``module:demo -> engine:whisper``.
    """
    return await sdk_services.later(sdk_services.call("engines.call", [kind, name, method], params or {}, timeout))


def call_blocking(
    name: str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    kind: Kind = "engine",
    timeout: float | None = None,
) -> Any:
    """Call a method from a synchronous function, and wait for the result."""
    result = sdk_services.call("engines.call", [kind, name, method], params or {}, timeout)
    return sdk_services.now(result, "await sdk.engines.call(...)")


async def stream(
    name: str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    kind: Kind = "engine",
    timeout: float | None = None,  # noqa: ASYNC109 - likewise, for each item
) -> AsyncIterator[Any]:
    """Yield the items of a method as they arrive. Leaving the loop early stops the method."""
    token = sdk_services.call("engines.open", [kind, name, method], params or {}, timeout)
    try:
        while items := await sdk_services.later(sdk_services.call("engines.next", token)):
            yield items[0]
    finally:
        sdk_services.call("engines.close", token)


def settings() -> dict[str, Any]:
    """Return the stored configuration of the calling engine or extractor. A change starts a new process."""
    found: dict[str, Any] = sdk_services.call("engines.settings")
    return found
