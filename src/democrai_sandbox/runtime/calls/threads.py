"""Threads for synchronous functions: separate ones for each subject, or one for each blocking call.

The threads belong to the host and are unguarded; each job enters its guard. They are daemons, because the process must
not wait at exit for a call that never returns. In a shared pool, a few tools that never return would block all others.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.services import RunStopped
from democrai_sandbox.runtime.sdk_services import hidden

if TYPE_CHECKING:
    from collections.abc import Callable

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", "Callable[..., Any]", tuple[Any, ...]]


class SubjectThreads:
    """A bounded number of threads that take jobs from one queue, started on demand."""

    def __init__(self, most: int, name: str) -> None:
        """Set the maximum number of threads, and their name."""
        self._most = most
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        self._idle = 0
        # Threads can be listed with their functions; access to the queue would let guarded code add jobs.
        self._serve = hidden(self._work)

    def submit(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Run a function in a thread and return its future on the running loop. It can be abandoned, not stopped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        with self._lock:
            if self._idle <= 0 and self._started < self._most:
                self._started += 1
                threading.Thread(target=self._serve, name=f"{self._name}-{self._started}", daemon=True).start()
            else:
                self._idle -= 1
        self._jobs.put((loop, future, function, args))
        return future

    def stop(self) -> None:
        """Stop idle threads; a busy thread stops after its job."""
        with self._lock:
            for _ in range(self._started):
                self._jobs.put(None)
            self._started = self._most

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            _run(*job, self._end)
            del job

    def _end(self) -> None:
        with self._lock:
            self._idle += 1


def _run(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    function: Callable[..., Any],
    args: tuple[Any, ...],
    end: Callable[[], object],
) -> None:
    """Run a function in this thread, call ``end``, and settle the future on its loop."""
    try:
        outcome, error = function(*args), None
    except BaseException as raised:  # noqa: BLE001 - the waiting caller gets it
        outcome, error = None, raised
    end()
    with suppress(RuntimeError):  # the loop is closed, so no caller waits
        loop.call_soon_threadsafe(_settle, future, outcome, error)
    # The traceback of the error references this frame.
    del future, function, args, outcome, error


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


MOST_AT_ONCE = 32


class CallThreads:
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
            job = (_run, loop, future, function, args, self._free.release)
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
