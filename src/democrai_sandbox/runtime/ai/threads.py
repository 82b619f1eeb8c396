"""Threads for what may block, each for one call and under the guard it is started in.

A pool would be shared: a tool that never returns would keep one of its threads, and a few such tools everybody else.
These are daemons, so that the process does not wait for them at its end either.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .errors import RunStopped

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_AT_ONCE = 32


class Threads:
    """The threads of one function."""

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        """Settle how many calls there may be at once."""
        self._free = threading.Semaphore(most)

    async def run(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Return what the function returns. Cancelled, it goes on by itself, and nobody waits for it."""
        if not self._free.acquire(blocking=False):
            raise RunStopped("too many calls have not come back yet")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        try:
            job = (_work, loop, future, self._free, function, args)
            threading.Thread(target=context.run, args=job, daemon=True).start()
        except BaseException:
            self._free.release()
            raise
        try:
            return await future
        finally:
            # An exception that is raised here knows this frame: it would keep itself, and the guard it was raised in.
            del future, job


def _work(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    free: threading.Semaphore,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    try:
        told: tuple[Any, BaseException | None] = (function(*args), None)
    except BaseException as error:  # noqa: BLE001 - whoever waits gets it
        told = (None, error)
    finally:
        free.release()
    # A loop that is closed meanwhile has nobody who waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, future, *told)
    del told, future


def _settle(future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
