"""Thread that runs store operations for a loop: in order, without blocking the loop."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.access.threads import Worker
from democrai_sandbox.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_log = logging.getLogger(__name__)
_LONGEST_PAUSE = 5.0


class Clerk:
    """Runs operations one after the other."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def start(self) -> None:
        """Start the thread, outside any guard."""
        Worker("runtime-tasks", self._work).start()

    def stop(self) -> None:
        """Stop after all earlier operations."""
        self._jobs.put(None)

    async def have(self, act: Callable[..., T], *args: Any, **named: Any) -> T:
        """Return the result of a store operation, or raise its error."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(lambda: _do(loop, future, partial(act, *args, **named)))
        return await future

    async def insist(self, act: Callable[..., T], *args: Any, **named: Any) -> T:
        """Run an operation, and retry while the store is down, for data that must not be lost."""
        pause = 0.1
        while True:
            try:
                return await self.have(act, *args, **named)
            except StoreUnavailable as error:
                _log.warning("the store is down; a task waits for it: %s", error.__cause__ or error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job


def _do(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], act: Callable[[], Any]) -> None:
    result, error = None, None
    try:
        result = act()
    except Exception as raised:  # noqa: BLE001 - raised in the waiting caller
        error = raised
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(_settle, future, result, error)


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
