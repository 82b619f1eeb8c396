"""Futures for guarded code of what the host does meanwhile.

Guarded code gets a bare future and nothing behind it: a task would show its frames, and with them what the host works
with. That it was cancelled is looked for, because a callback on it would lead back as well. The work begins in a
Context of its own on the host's loop, whatever loop or context guarded code has made current.
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
    """Does work on the host's loop for callers on that loop, who get a future, and on other threads, who wait."""

    def __init__(self, what: str, *, patience: float = 30.0) -> None:
        """``what`` names the service in errors; a thread waits no longer than ``patience`` seconds."""
        self._what = what
        self._patience = patience
        self._loop: asyncio.AbstractEventLoop | None = None
        self._working: set[asyncio.Task[None]] = set()
        # The loop shows what it is to call, and a task what comes after it.
        self._begin_there = hidden(self._begin)
        self._forget = hidden(self._working.discard)

    def open(self) -> None:
        """Work on the loop that runs here, which is the host's."""
        self._loop = asyncio.get_running_loop()

    def promise(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return a future of what the work comes to; on another thread than the loop's, what it came to."""
        loop = self._loop
        if loop is None or loop.is_closed():
            work.close()
            raise RuntimeServiceFailed(f"{self._what} is not served: the runtime is not running")
        if asyncio._get_running_loop() is loop:  # noqa: SLF001 - get_running_loop raises where there is none
            future: asyncio.Future[Any] = loop.create_future()
            self._begin(loop, future, work)
            return future
        waiting: concurrent.futures.Future[Any] = concurrent.futures.Future()
        loop.call_soon_threadsafe(self._begin_there, loop, waiting, work, context=Context())
        try:
            return waiting.result(self._patience)
        except TimeoutError:
            waiting.cancel()
            raise RuntimeServiceFailed(f"{self._what} does not answer") from None

    def _begin(self, loop: asyncio.AbstractEventLoop, future: AnyFuture, work: Coroutine[Any, Any, Any]) -> None:
        task = loop.create_task(self._settle(future, work), context=Context())
        self._working.add(task)
        task.add_done_callback(self._forget)

    async def _settle(self, future: AnyFuture, work: Coroutine[Any, Any, Any]) -> None:
        """Work until it is done or nobody waits any more; then say what came of it."""
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
        """Return an error without the frames it passed through; what is none of ours stays in the host's log."""
        if not isinstance(error, SandboxError):
            _log.error("%s failed", self._what, exc_info=error)
            return RuntimeServiceFailed(f"{self._what} failed in the runtime")
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)
