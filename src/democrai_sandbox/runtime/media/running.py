"""A flow under way: its steps run in threads of a pool, and it ends once, however it ends."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import MediaBusy, MediaClosed, MediaTimeout
from .values import MediaHead, MediaResult

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor, Future
    from typing import Self

    from .cached import CachedFlow
    from .slots import Slots

_T = TypeVar("_T")
_GRACE = 1.0
"""Steps keep to their time by themselves, but for the lookup of a name, which nothing can interrupt."""


class Running:
    """Holds a place until the last step is over: a thread that cannot be interrupted still counts."""

    def __init__(self, flow: CachedFlow, pool: Executor, seconds: float, ended: Callable[[Running], None]) -> None:
        """Take over a place that was given out; ``ended`` gives it back."""
        self.flow = flow
        self._pool, self._ended = pool, ended
        self._deadline = monotonic() + seconds
        self._lock = threading.Lock()
        self._last: Future[Any] | None = None
        self._over = False
        self._used = monotonic()

    @property
    def over(self) -> bool:
        """Whether it was finished."""
        return self._over

    @property
    def left(self) -> float:
        """How much of its time is left, in seconds."""
        return max(self._deadline - monotonic(), 0.0)

    def is_abandoned(self, unread: float) -> bool:
        """Tell whether its time is over, or nobody has read it for so many seconds."""
        with self._lock:
            at_work = self._last is not None and not self._last.done()
        return not self.left or (not at_work and monotonic() - self._used > unread)

    def submit(self, step: Callable[[], _T]) -> Future[_T]:
        """Have a step done by a thread; one at a time."""
        with self._lock:
            if self._over and not self.left:
                raise MediaTimeout("the fetch took too long")
            if self._over or (self._last is not None and not self._last.done()):
                raise MediaClosed("the stream is closed, or is being read already")
            try:
                future = self._pool.submit(step)
            except RuntimeError:
                raise MediaClosed("the media service is closed") from None
            self._last = future
            future.add_done_callback(self._note_use)
            return future

    async def step(self, function: Callable[[], _T]) -> _T:
        """Do a step without blocking the loop; whatever ends the waiting ends the flow."""
        future = asyncio.wrap_future(self.submit(function))
        try:
            return await asyncio.wait_for(future, self.left + _GRACE)
        except TimeoutError as error:
            self.finish()
            raise _as_media(error) from None
        except BaseException:
            self.finish()
            raise

    def step_blocking(self, function: Callable[[], _T]) -> _T:
        """Do a step and wait for it."""
        future = self.submit(function)
        try:
            return future.result(self.left + _GRACE)
        except TimeoutError as error:
            self.finish()
            raise _as_media(error) from None
        except BaseException:
            self.finish()
            raise

    def finish(self) -> None:
        """End the flow and give its place back, as soon as no thread is in it any more. May be called twice."""
        with self._lock:
            if self._over:
                return
            self._over = True
            last = self._last
        self.flow.abort()
        if last is None:
            self._let_go(None)
        else:
            last.add_done_callback(self._let_go)

    def fetch_whole(self) -> MediaResult:
        """Open and read all, in one step."""
        head = self.flow.open()
        parts = list(iter(self.flow.read, b""))
        return MediaResult(head.status, head.headers, b"".join(parts), head.url, self.flow.from_cache)

    def _note_use(self, _: object) -> None:
        self._used = monotonic()

    def _let_go(self, _: object) -> None:
        try:
            self.flow.close()
        finally:
            self._last = None  # what a future was waited for with is kept by it, and with that the caller's context
            self._ended(self)


class MediaStream:
    """An answer whose body comes in parts: ``async for``, closed by ``async with`` or ``aclose()``.

    One that nobody reads or closes ends when its time is over.
    """

    def __init__(self, running: Running, head: MediaHead, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take over a flow that is open; on a loop it is ended in time, elsewhere when places are asked for.

        The loop is given, not looked up: where a door is called, the one that runs may be of a subject's making.
        """
        self._running = running
        self.head = head
        self._timer = loop.call_later(running.left + _GRACE, running.finish) if loop else None

    @property
    def status(self) -> int:
        """The status of the answer."""
        return self.head.status

    @property
    def headers(self) -> dict[str, str]:
        """The headers that describe the content."""
        return self.head.headers

    @property
    def from_cache(self) -> bool:
        """Whether the server was spared."""
        return self._running.flow.from_cache

    @property
    def closed(self) -> bool:
        """Whether it has come to its end, or was ended."""
        return self._running.over

    async def read(self) -> bytes:
        """Return the next part of the body; nothing at its end."""
        data = await self._running.step(self._running.flow.read)
        if not data:
            self.end()
        return data

    def read_blocking(self) -> bytes:
        """Do the same and wait for it."""
        data = self._running.step_blocking(self._running.flow.read)
        if not data:
            self._running.finish()
        return data

    def end(self) -> None:
        """End it; the connection goes with it."""
        if self._timer is not None:
            self._timer.cancel()
        self._running.finish()

    async def aclose(self) -> None:
        """Do the same, under the name that closes what is iterated."""
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


async def wait_for_place(slots: Slots, subject: str, seconds: float) -> None:
    """Wait for a place without blocking the loop."""
    place = slots.take(subject)
    try:
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(place)), seconds)
    except TimeoutError:
        slots.give_up(subject, place)
        raise MediaBusy(f"{subject} has too many fetches under way") from None
    except BaseException:
        slots.give_up(subject, place)
        raise


def wait_for_place_blocking(slots: Slots, subject: str, seconds: float) -> None:
    """Wait for a place."""
    place = slots.take(subject)
    try:
        place.result(seconds)
    except TimeoutError:
        slots.give_up(subject, place)
        raise MediaBusy(f"{subject} has too many fetches under way") from None


def _as_media(error: TimeoutError) -> MediaTimeout:
    return error if isinstance(error, MediaTimeout) else MediaTimeout("the fetch took too long")
