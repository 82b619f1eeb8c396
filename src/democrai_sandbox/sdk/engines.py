"""Calling engines and extractors, and what an engine finds of its own configuration."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from democrai_sandbox.runtime import doors

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Kind = Literal["engine", "extractor"]


async def call(
    name: str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    kind: Kind = "engine",
    timeout: float | None = None,  # noqa: ASYNC109 - the engine's process is told of it
) -> Any:
    """Call a method of an engine or extractor; it runs in its own process, under its own declarations.

    In every check there the chain begins with the caller: ``module:demo -> engine:whisper``.
    """
    return await _here(doors.call("engines.call", [kind, name, method], params or {}, timeout))


def call_blocking(
    name: str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    kind: Kind = "engine",
    timeout: float | None = None,
) -> Any:
    """Call a method from a function that is not async, and wait for what it returns."""
    result = doors.call("engines.call", [kind, name, method], params or {}, timeout)
    if asyncio.isfuture(result):
        result.cancel()
        raise RuntimeError("an event loop is running here: await sdk.engines.call(...) instead")
    return result


async def stream(
    name: str,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    kind: Kind = "engine",
    timeout: float | None = None,  # noqa: ASYNC109 - likewise, for each item
) -> AsyncIterator[Any]:
    """Yield what a method yields, as it comes. Leaving the loop early ends the method."""
    token = doors.call("engines.open", [kind, name, method], params or {}, timeout)
    try:
        while items := await _here(doors.call("engines.next", token)):
            yield items[0]
    finally:
        doors.call("engines.close", token)


def settings() -> dict[str, Any]:
    """Return the stored configuration of the engine or extractor that asks. A change of it starts a new process."""
    found: dict[str, Any] = doors.call("engines.settings")
    return found


async def _here(result: Any) -> Any:
    """Wait for a future; on a loop of the extension's own the runtime has waited already."""
    return await result if asyncio.isfuture(result) else result
