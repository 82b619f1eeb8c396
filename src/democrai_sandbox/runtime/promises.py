"""Futures that guarded code gets for work of the host.

Guarded code gets a bare future: a task would expose its frames, and with them objects of the host. Cancellation is
polled, because a callback on the future would expose the host as well. The work starts in a new Context on the host's
loop, independent of the loop or context that guarded code made current.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from contextvars import Context
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import RuntimeServiceFailed
from democrai_sandbox.policy import SandboxError

from .hidden import hidden

if TYPE_CHECKING:
    from collections.abc import Coroutine

    AnyFuture = asyncio.Future[Any] | concurrent.futures.Future[Any]

_LOOK_SECONDS = 0.1
_log = logging.getLogger(__name__)


class Promises:
    """Runs work on the host's loop. Callers on that loop get a future; callers on other threads wait."""

    def __init__(self, what: str, *, patience: float = 30.0) -> None:
        """Set the name of the service for errors, and the timeout in seconds for waiting threads."""
        self._what = what
        self._patience = patience
        self._loop: asyncio.AbstractEventLoop | None = None
        self._working: set[asyncio.Task[None]] = set()
        # The loop exposes its callbacks, and a task exposes its done callbacks.
        self._begin_there = hidden(self._begin)
        self._forget = hidden(self._working.discard)

    def open(self) -> None:
        """Use the running loop, which is the host's."""
        self._loop = asyncio.get_running_loop()

    def promise(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return a future of the result; on another thread than the loop's, return the result itself."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work.close()
            raise RuntimeServiceFailed(f"{self._what} is not available: the runtime is not running")
        if asyncio._get_running_loop() is loop:  # noqa: SLF001 - get_running_loop raises without a loop
            future: asyncio.Future[Any] = loop.create_future()
            self._begin(loop, future, work)
            return future
        waiting: concurrent.futures.Future[Any] = concurrent.futures.Future()
        loop.call_soon_threadsafe(self._begin_there, loop, waiting, work, context=Context())
        try:
            return waiting.result(self._patience)
        except TimeoutError:
            waiting.cancel()
            raise RuntimeServiceFailed(f"{self._what} did not answer within {self._patience:g} s") from None

    def _begin(self, loop: asyncio.AbstractEventLoop, future: AnyFuture, work: Coroutine[Any, Any, Any]) -> None:
        task = loop.create_task(self._settle(future, work), context=Context())
        self._working.add(task)
        task.add_done_callback(self._forget)

    async def _settle(self, future: AnyFuture, work: Coroutine[Any, Any, Any]) -> None:
        """Work until the task is done or the future is canceled; then set its result or error."""
        task = asyncio.ensure_future(work)
        try:
            while not task.done() and not future.cancelled():
                await asyncio.wait({task}, timeout=_LOOK_SECONDS)
        finally:
            task.cancel()
        if future.done() or task.cancelled():
            future.cancel()
            return
        error = task.exception()
        if error is None:
            future.set_result(task.result())
        else:
            future.set_exception(self._bare(error))

    def _bare(self, error: BaseException) -> SandboxError:
        """Return an error without its frames; log an error that is not ours and replace it."""
        if not isinstance(error, SandboxError):
            _log.error("%s failed", self._what, exc_info=error)
            return RuntimeServiceFailed(f"{self._what} failed in the runtime")
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
