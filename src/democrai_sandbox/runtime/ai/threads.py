"""Threads for blocking calls: one per call, under the guard it is started in.

In a shared pool, a few tools that never return would block all others. The threads are daemons, so that the process
does not wait for them at exit.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.ai import RunStopped

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_AT_ONCE = 32


class Threads:
    """Threads of one function."""

    def __init__(self, most: int = MOST_AT_ONCE) -> None:
        """Set the maximum number of concurrent calls."""
        self._free = threading.Semaphore(most)

    async def run(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Return the result of the function. After a cancellation the thread continues, and its result is dropped."""
        if not self._free.acquire(blocking=False):
            raise RunStopped("too many concurrent calls have not returned")
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
            # The traceback of an exception references this frame: without the deletion it would keep itself and its
            # guard alive.
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
    except BaseException as error:  # noqa: BLE001 - the waiting caller gets it
        told = (None, error)
    finally:
        free.release()
    # A closed loop has no waiting caller.
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
