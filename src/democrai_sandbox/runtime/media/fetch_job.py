"""Running fetch: its steps run in threads of a pool with a limit per subject, and it ends exactly once."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from democrai_sandbox.errors.services import MediaBusy, MediaClosed, MediaTimeout

from .values import FetchResult, MediaHead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor
    from typing import Self

    from .cache import CachedFetch
    from .values import MediaLimits


class FetchSlots:
    """Slots for fetches, limited per subject and in total. Waiting callers are served in order."""

    def __init__(self, limits: MediaLimits) -> None:
        """Start with all slots free."""
        self._limits = limits
        self._lock = threading.Lock()
        self._taken: dict[str, int] = {}
        self._waiting: dict[str, deque[Future[None]]] = {}

    def take(self, subject: str) -> Future[None]:
        """Return a future of a slot. A caller that stops waiting passes it to ``give_up``."""
        place: Future[None] = Future()
        with self._lock:
            queue = self._waiting.get(subject, ())
            if len(queue) >= self._limits.waiting_per_subject:
                raise MediaBusy(f"{subject} has too many running fetches")
            if not queue and self._is_free(subject):
                self._occupy(subject)
                place.set_result(None)
            else:
                self._waiting.setdefault(subject, deque()).append(place)
        return place

    async def wait(self, subject: str) -> None:
        """Wait for a slot without blocking the loop."""
        with self._queued(subject) as place:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(place)), self._limits.waiting_seconds)

    def wait_blocking(self, subject: str) -> None:
        """Wait for a slot."""
        with self._queued(subject) as place:
            place.result(self._limits.waiting_seconds)

    @contextmanager
    def _queued(self, subject: str) -> Iterator[Future[None]]:
        place = self.take(subject)
        try:
            yield place
        except BaseException as error:
            self.give_up(subject, place)
            if isinstance(error, TimeoutError):
                raise MediaBusy(f"{subject} has too many running fetches") from None
            raise

    def give_up(self, subject: str, place: Future[None]) -> None:
        """Stop waiting; a slot that was just assigned goes to the next caller."""
        if not place.cancel():
            self.release(subject)
            return
        with self._lock, suppress(KeyError, ValueError):
            self._waiting[subject].remove(place)

    def release(self, subject: str) -> None:
        """Release a slot."""
        with self._lock:
            self._taken[subject] -= 1
            if not self._taken[subject]:
                del self._taken[subject]
            ready = self._next()
        for place in ready:
            place.set_result(None)

    @property
    def under_way(self) -> int:
        """Number of occupied slots."""
        with self._lock:
            return sum(self._taken.values())

    def _is_free(self, subject: str) -> bool:
        own = self._taken.get(subject, 0) < self._limits.flows_per_subject
        return own and sum(self._taken.values()) < self._limits.flows

    def _occupy(self, subject: str) -> None:
        self._taken[subject] = self._taken.get(subject, 0) + 1

    def _next(self) -> list[Future[None]]:
        """Return the slots that can be assigned now, to the subject with the fewest first."""
        ready: list[Future[None]] = []
        for subject in sorted(self._waiting, key=lambda name: self._taken.get(name, 0)):
            queue = self._waiting[subject]
            while queue and self._is_free(subject):
                place = queue.popleft()
                if place.set_running_or_notify_cancel():
                    self._occupy(subject)
                    ready.append(place)
            if not queue:
                del self._waiting[subject]
        return ready


_T = TypeVar("_T")
_GRACE = 1.0
"""Steps enforce their own timeouts, except for a DNS lookup, which cannot be interrupted."""


class FetchJob:
    """Occupies a slot until the last step has ended, because an uninterruptible thread still counts."""

    def __init__(self, flow: CachedFetch, pool: Executor, seconds: float, ended: Callable[[FetchJob], None]) -> None:
        """Take over an occupied slot; ``ended`` releases it."""
        self.flow = flow
        self._pool, self._ended = pool, ended
        self._deadline = monotonic() + seconds
        self._lock = threading.Lock()
        self._last: Future[Any] | None = None
        self.over = False
        """Whether it has finished."""
        self._used = monotonic()

    @property
    def left(self) -> float:
        """Seconds left before its deadline."""
        return max(self._deadline - monotonic(), 0.0)

    def is_abandoned(self, unread: float) -> bool:
        """Return whether its deadline has passed, or it has not been read for ``unread`` seconds."""
        with self._lock:
            at_work = self._last is not None and not self._last.done()
        return not self.left or (not at_work and monotonic() - self._used > unread)

    def submit(self, step: Callable[[], _T]) -> Future[_T]:
        """Run a step on a thread; one at a time."""
        with self._lock:
            if self.over and not self.left:
                raise MediaTimeout("the fetch exceeded its timeout")
            if self.over or (self._last is not None and not self._last.done()):
                raise MediaClosed("the stream is closed, or is being read already")
            try:
                future = self._pool.submit(step)
            except RuntimeError:
                raise MediaClosed("the media service is closed") from None
            self._last = future
            future.add_done_callback(self._note_use)
            return future

    async def step(self, function: Callable[[], _T]) -> _T:
        """Run a step without blocking the loop; end the flow if the step or the wait fails."""
        future = asyncio.wrap_future(self.submit(function))
        with self.ending_on_error():
            return await asyncio.wait_for(future, self.left + _GRACE)

    def step_blocking(self, function: Callable[[], _T]) -> _T:
        """Run a step and wait for it."""
        future = self.submit(function)
        with self.ending_on_error():
            return future.result(self.left + _GRACE)

    @contextmanager
    def ending_on_error(self) -> Iterator[None]:
        """End the flow if the block fails; its timeout becomes one of media."""
        try:
            yield
        except MediaTimeout as error:
            self.finish()
            raise error from None
        except TimeoutError:
            self.finish()
            raise MediaTimeout("the fetch exceeded its timeout") from None
        except BaseException:
            self.finish()
            raise

    def finish(self) -> None:
        """End the flow, and release its slot when no thread uses it any more. May be called repeatedly."""
        with self._lock:
            if self.over:
                return
            self.over = True
            last = self._last
        self.flow.abort()
        if last is None:
            self._let_go(None)
        else:
            last.add_done_callback(self._let_go)

    def fetch_whole(self) -> FetchResult:
        """Open and read everything in one step."""
        head = self.flow.open()
        parts = list(iter(self.flow.read, b""))
        return FetchResult(head.status, head.headers, b"".join(parts), head.url, self.flow.from_cache)

    def _note_use(self, _: object) -> None:
        self._used = monotonic()

    def _let_go(self, _: object) -> None:
        try:
            self.flow.close()
        finally:
            self._last = None  # the future references the caller's context through its callbacks
            self._ended(self)


class FetchStream:
    """A response whose body arrives in parts: ``async for``, closed by ``async with`` or ``aclose()``.

    A stream that is neither read nor closed ends at its deadline.
    """

    def __init__(self, running: FetchJob, head: MediaHead, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take over an open flow. On a loop it ends at its deadline, elsewhere when slots are needed.

        The loop is passed in, because the running loop of a guarded caller may be the subject's own.
        """
        self._running = running
        self.head = head
        self._timer = loop.call_later(running.left + _GRACE, running.finish) if loop else None

    @property
    def status(self) -> int:
        """Status of the response."""
        return self.head.status

    @property
    def headers(self) -> dict[str, str]:
        """Headers that describe the content."""
        return self.head.headers

    @property
    def from_cache(self) -> bool:
        """Whether the response came from the cache."""
        return self._running.flow.from_cache

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._running.over

    async def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        data = await self._running.step(self._running.flow.read)
        if not data:
            self.end()
        return data

    def read_blocking(self) -> bytes:
        """Return the next part of the body, and block until it arrives."""
        data = self._running.step_blocking(self._running.flow.read)
        if not data:
            self._running.finish()
        return data

    def end(self) -> None:
        """End the stream and close its connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._running.finish()

    async def aclose(self) -> None:
        """End the stream."""
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._running.over:
            raise StopAsyncIteration
        data = await self.read()
        if not data:
            raise StopAsyncIteration
        return data

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
