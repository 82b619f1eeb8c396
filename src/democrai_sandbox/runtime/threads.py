"""Threads for synchronous functions. Each subject has separate threads, so one that never returns blocks only itself.

The threads belong to the host and are unguarded; each job enters its guard. They are daemons, because the executor of
the standard library would wait at exit for a call that never returns.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from .hidden import hidden

if TYPE_CHECKING:
    from collections.abc import Callable

_Job = tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]", "Callable[..., Any]", tuple[Any, ...]]


class Threads:
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
            loop, future, function, args = job
            try:
                outcome, error = function(*args), None
            except BaseException as raised:  # noqa: BLE001 - the waiting caller gets it
                outcome, error = None, raised
            with self._lock:
                self._idle += 1
            with suppress(RuntimeError):  # the loop is closed, so no caller waits
                loop.call_soon_threadsafe(_settle, future, outcome, error)
            del job, future, function, args, outcome, error


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)
