"""Calls to one process of a worker: sent, answered, streamed, canceled, late, and failed when the process ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import stat
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from time import thread_time
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExtensionFailed, ExtensionUnknown, SandboxDenied
from democrai_sandbox.errors.extensions import FrameError, LimitReached, WorkerFailed, WorkerTimeout
from democrai_sandbox.policy import SandboxError, hint_for
from democrai_sandbox.runtime.calls.invocation import DeadlineTimer
from democrai_sandbox.runtime.calls.outcome import VALUE, release

from .channel import Channel
from .host_requests import HostRequests, KnownCaller
from .process import NOBODY, SurfaceInfo, WorkerHostServices, WorkerSpec, WorkerStarter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping


CREDIT = 16
"""Stream items that may be in transit."""


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    """Set an error, and mark it as retrieved, because the caller may have stopped waiting."""
    future.set_exception(error)
    future.exception()


@dataclass(slots=True, eq=False)
class PendingCall:
    """One call, from its frame until the worker reports its end, even if its caller stopped waiting."""

    number: int
    standing: KnownCaller
    future: asyncio.Future[Any]
    progress: Callable[..., Any] | None
    on_lane: bool = False
    cancelled: bool = False
    """Whether the worker was sent a cancellation."""
    seconds: float = 0.0
    """Timeout of the call."""
    deadline: float = inf
    overdue: bool = False
    """Whether the deadline has passed and the call was canceled."""

    def land(self, outcome: Any) -> None:
        """Set the result."""
        if not self.future.done():
            self.future.set_result(outcome)

    def fail(self, error: BaseException) -> None:
        """Set an error."""
        if not self.future.done():
            _fail(self.future, error)

    def item(self, value: Any) -> None:
        """Refuse a stream item, because this call is not a stream."""
        del value
        raise FrameError("a stream item for a call that is not a stream")


@dataclass(slots=True, eq=False)
class PendingStream(PendingCall):
    """A call whose results arrive one by one; ``future`` is its end."""

    _items: deque[Any] = field(default_factory=deque)
    _come: asyncio.Event = field(default_factory=asyncio.Event)
    _taken: int = 0

    def item(self, value: Any) -> None:
        """Store an item until it is taken."""
        if len(self._items) >= CREDIT:
            raise FrameError("more stream items than requested")
        self._items.append(value)
        self._come.set()

    def land(self, outcome: Any) -> None:
        """Record the end, which comes after the stored items."""
        PendingCall.land(self, outcome)
        self._come.set()

    def fail(self, error: BaseException) -> None:
        """Record the error that ends the stream."""
        PendingCall.fail(self, error)
        self._come.set()

    @property
    def is_empty(self) -> bool:
        """Whether the next item has not arrived yet."""
        return not self._items

    async def arrival(self) -> None:
        """Wait for an item or the end."""
        while not self._items and not self.future.done():
            self._come.clear()
            await self._come.wait()

    def take(self) -> tuple[Any, int]:
        """Return the next item, and the number of further items that the worker may send, reported in batches."""
        value = self._items.popleft()
        self._taken += 1
        if self._taken < CREDIT // 2:
            return value, 0
        more, self._taken = self._taken, 0
        return value, more


_ASKED_FOR = frozenset({"done", "item", "noticed"})
"""Messages that answer a call, limited by the host; and reports that a recorded worker has to send."""
_CARRIERS = frozenset({"done", "item", "door"})
"""Messages that carry values of the subject, which may be large."""
_MOST_BYTES = 4 * 1024 * 1024
_MOST_VALUES = 100_000
"""Limits for all other messages."""
_MOST_DENIALS = 500
_MOST_SEEN = 5000
_WINDOW = 10.0
_DRAIN_SECONDS = 0.05
"""Seconds between two checks whether a replaced process has finished its calls."""


_MEGABYTE = 1024 * 1024
_BLOCK = 4096
"""Bytes that a file takes at least, with its entry."""
_LOOK_AGAIN, _LOOK_IDLE = 1.0, 10.0
"""Seconds between two measurements of a temp folder, while calls are pending and otherwise."""
_PAUSE_FACTOR = 20
"""A pause lasts at least this multiple of the measurement before it."""
_measuring = ThreadPoolExecutor(1, "temp-folders")
"""Thread that measures, started on demand."""


def _takes_more(folder: str, most: int) -> bool:
    """Return whether the files of a folder take more than this many bytes.

    So does one with a folder that cannot be read: otherwise files could be hidden in it.
    """
    taken, folders = 0, [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        info = entry.stat(follow_symlinks=False)
                        taken += max(info.st_blocks * 512, _BLOCK)
                        folders += [entry.path] if stat.S_ISDIR(info.st_mode) else []
                    if taken > most:
                        return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            return True
    return False


_LIMITS = {"[Errno 24]": "open_files", "[Errno 27]": "file_size_mb"}
"""Limits by the error that reaching them raises: EMFILE, EFBIG."""
_OF_MEMORY = ("memory_mb", "address_space_mb")
_NO_THREAD = ("RuntimeError", "can't start new thread")


def _limit_of(error: ExtensionFailed, limits: Mapping[str, int]) -> str:
    """Return the name of the limit that an error is about; empty for another error."""
    if (error.kind, error.message) == _NO_THREAD:
        return "processes" if "processes" in limits else ""
    if error.kind == "MemoryError":
        return min((name for name in _OF_MEMORY if name in limits), key=limits.__getitem__, default="")
    name = _LIMITS.get(error.message[:10], "") if error.kind == "OSError" else ""
    return name if name in limits else ""


class WorkerSession:
    """A process and its calls. Belongs to one loop."""

    def __init__(self, spec: WorkerSpec, host: WorkerHostServices) -> None:
        """Prepare the link; ``start`` starts the process."""
        self._spec = spec
        self._host = host
        self._loop = asyncio.get_running_loop()
        self.channel = Channel(spec, host, self._heard, self._over)
        self._numbers = itertools.count(1)
        self.flights: dict[int, PendingCall] = {}
        """Calls that the worker has not ended."""
        self._deadlines = DeadlineTimer(self._loop, self.flights, self._expired)
        self._requests = HostRequests(spec, host, self.channel.tell, self.flights, self.channel.give)
        self._lane_is_free = True
        self._waits = False
        self._denials = 0
        self._listen_again = 0.0
        self._seen = 0
        self._look_again = 0.0
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self.settled = asyncio.Event()
        """Not set while the process may be, or is being, stopped for an overdue call or its temp folder."""
        self.settled.set()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self.surfaces: Mapping[tuple[str, str], SurfaceInfo] = {}
        self.has_served = False
        self._temp_watch: asyncio.Task[None] | None = None
        self._handlers: dict[str, Callable[..., None]] = {
            "done": self._done,
            "item": lambda number, value: self.flights[number].item(value),
            "ask": lambda number, fields, call: self._requests.decide(number, fields, self.flights.get(call)),
            "door": lambda number, name, call, *asked: self._requests.serve(
                number, name, self.flights.get(call), *asked
            ),
            "drop": self._requests.drop,
            "denied": self._denied,
            "saw": self._saw,
            "observe": self._requests.observe,
            "ready": self._is_ready,
            "broken": self._is_broken,
        }
        if spec.tells_accesses:
            self._handlers["noticed"] = host.noticed  # type: ignore[attr-defined] # recording hosts have it
        if spec.confined:
            self._handlers["open"] = lambda number, fields, call, flags, mode: self._requests.open(
                number, fields, self.flights.get(call), flags, mode
            )
        if spec.tells_uses:
            self._handlers["used"] = self._requests.used

    # ---- lifecycle ---------------------------------------------------------------------------------------------------

    async def start(self, starter: WorkerStarter) -> None:
        """Start the process and wait until its code is imported. Raise the error of a failed start or import."""
        await self.channel.start(starter)
        self._temp_watch = self._loop.create_task(self._watch_temp())
        try:
            async with asyncio.timeout(self._spec.start_timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            why = f"the worker did not finish its import within {self._spec.start_timeout:g} s"
            self.channel.end(why)
            await self.channel.gone()
            raise WorkerTimeout(self._spec.label, why, output=self.channel.last_words) from None
        except BaseException:
            self.channel.end("the start of the worker was canceled")
            raise

    async def _watch_temp(self) -> None:
        """Stop the process when its temp folder takes more than its limit."""
        label, most = self._spec.label, dict(self._spec.limits).get("temp_mb")
        if most is None or not self._spec.temp:
            return
        seconds, is_full = 0.0, False
        while not is_full:
            await asyncio.sleep(max(_LOOK_AGAIN if self.flights else _LOOK_IDLE, _PAUSE_FACTOR * seconds))
            begin = self._loop.time()
            is_full = await self._loop.run_in_executor(_measuring, _takes_more, self._spec.temp, most * _MEGABYTE)
            seconds = self._loop.time() - begin
        self.settled.clear()  # new calls wait for the next process
        self._host.limit_reached(label, "temp_mb")
        failure = ExtensionFailed("the worker was stopped, and its temp folder is removed")
        for flight in self.flights.values():
            flight.fail(LimitReached(label, "temp_mb", most, failure))
        self.channel.end(f"the worker reached its limit temp_mb of {most}")

    def _over(self, error: WorkerFailed) -> None:
        """Fail all pending calls of a process that has ended."""
        self._deadlines.close()
        self._requests.close()
        if self._temp_watch is not None:
            self._temp_watch.cancel()
        flights = tuple(self.flights.values())
        self.flights.clear()
        for flight in flights:
            flight.fail(error)
        if not self._ready.done():
            _fail(self._ready, error.before_ready())
        self.settled.set()
        self.ended.set_result(None)

    # ---- calls -------------------------------------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """Whether new calls should wait, because the process has ended or may soon be stopped."""
        return self.ended.done() or not self.settled.is_set()

    async def idle(self) -> None:
        """Wait until no call is pending, or the process has ended."""
        while self.flights and not self.ended.done():
            await asyncio.wait([self.ended], timeout=_DRAIN_SECONDS)

    def time(self) -> float:
        """Return the time of its loop."""
        return self._loop.time()

    async def call(
        self,
        surface: tuple[str, str],
        params: Mapping[str, Any],
        standing: KnownCaller,
        seconds: float,
        progress: Callable[..., Any] | None,
    ) -> Any:
        """Call a function, and return its result or raise its error."""
        info = self._surface(surface)
        if info.is_stream:
            raise ExtensionUnknown(f"{info.kind} {info.name} of {self._spec.label} is a stream; call it with stream()")
        flight = PendingCall(next(self._numbers), standing, self._loop.create_future(), progress)
        self._send(flight, info, params, 0)
        self._limit(flight, seconds)
        try:
            outcome = await flight.future
        except asyncio.CancelledError:
            self._cancel(flight)
            if flight.deadline == inf:
                self._limit(flight, self._spec.grace)
            raise
        self.has_served = True
        return self._released(outcome)

    async def stream(
        self,
        surface: tuple[str, str],
        params: Mapping[str, Any],
        standing: KnownCaller,
        seconds: float,
        progress: Callable[..., Any] | None,
    ) -> AsyncGenerator[Any, None]:
        """Yield the items of a generator as they arrive; only a few are produced ahead."""
        info = self._surface(surface)
        if not info.is_stream:
            raise ExtensionUnknown(
                f"{info.kind} {info.name} of {self._spec.label} is not a stream; call it with call()"
            )
        flight = PendingStream(next(self._numbers), standing, self._loop.create_future(), progress)
        self._send(flight, info, params, CREDIT)
        try:
            while True:
                if flight.is_empty:
                    self._limit(flight, seconds)
                    await flight.arrival()
                    flight.deadline = inf
                if flight.is_empty:
                    break
                value, more = flight.take()
                if more:
                    self.channel.tell(["credit", flight.number, more])
                yield value
            self._released(flight.future.result())
            self.has_served = True
        finally:
            if flight.number in self.flights:
                self._cancel(flight)
                self._limit(flight, seconds)

    def changed(self) -> None:
        """Make the guard in the worker ask again about earlier decisions."""
        self.channel.tell(["changed"])

    def hold_against(self, access: str, imports: tuple[str, ...]) -> None:
        """Compare the checks in the worker with a candidate's rules, as JSON; the empty text ends it."""
        self.channel.tell(["candidate", access, imports])

    def _surface(self, surface: tuple[str, str]) -> SurfaceInfo:
        found = self.surfaces.get(surface)
        if found is not None:
            return found
        kind, name = surface
        hint = hint_for(name, [other for sort, other in self.surfaces if sort == kind])
        raise ExtensionUnknown(f"{self._spec.label} has no {kind} {name!r}{hint}")

    def _send(self, flight: PendingCall, info: SurfaceInfo, params: Mapping[str, Any], credit: int) -> None:
        caller, ancestors, shared = flight.standing
        who = None if caller is NOBODY else tuple(caller)
        message = ["call", flight.number, info.kind, info.name, params, who, ancestors, credit]
        if shared is not None:
            message += shared[1:]
        if self.channel.lane.unsent + self.channel.control.unsent > self._spec.largest_frame:
            raise WorkerFailed(self._spec.label, "the worker does not read its messages")
        # A plain function occupies the lane; tasks share it. A plain generator would occupy it for too long.
        alone = self._lane_is_free and not self._waits and not info.is_stream and not info.awaits
        line = self.channel.lane if alone or info.awaits else self.channel.control
        frame = line.encode(message)
        if alone:
            self._lane_is_free = False
            flight.on_lane = True
        self.flights[flight.number] = flight
        line.write(*frame)

    def _cancel(self, flight: PendingCall) -> None:
        if flight.number in self.flights:
            flight.cancelled = True
            self.channel.tell(["cancel", flight.number])

    def _limit(self, flight: PendingCall, seconds: float) -> None:
        """Set the deadline of a call, ``seconds`` from now."""
        flight.seconds = seconds
        flight.deadline = self._loop.time() + seconds
        self._deadlines.watch(flight.deadline)

    def _expired(self, flight: PendingCall, now: float) -> None:
        """Cancel an overdue call. New calls wait until it has ended, or its process is stopped after a grace period."""
        if not flight.overdue:
            flight.overdue = True
            flight.deadline = now + self._spec.grace
            self.settled.clear()
            self._cancel(flight)
            return
        flight.deadline = inf
        why = "and did not stop when canceled, so its process was stopped"
        flight.fail(self._too_late(flight, why))
        self.channel.end(f"another call took longer than {flight.seconds:g} s {why}")

    def _too_late(self, flight: PendingCall, what: str) -> WorkerTimeout:
        why = f"the call took longer than {flight.seconds:g} s {what}"
        return WorkerTimeout(self._spec.label, why, output=self.channel.last_words)

    def _released(self, outcome: Any) -> Any:
        """Read the outcome of a call. The worker may have sent anything."""
        if type(outcome) is list and len(outcome) == 2 and outcome[0] == VALUE:  # noqa: PLR2004 - a kind and a value
            return outcome[1]  # plain data, because it came over the channel
        try:
            return release(outcome)
        except ExtensionFailed as error:
            limits = dict(self._spec.limits)
            limit = _limit_of(error, limits)
            if not limit:
                raise
            self._host.limit_reached(self._spec.label, limit)
            raise LimitReached(self._spec.label, limit, limits[limit], error) from None
        except SandboxError:
            raise
        except Exception as error:
            self.channel.end("the worker sent a malformed result", WorkerFailed)
            raise WorkerFailed(self._spec.label, "the worker sent a malformed result") from error

    # ---- messages of the worker --------------------------------------------------------------------------------------

    def _heard(self, message: Any, size: int, values: int) -> None:
        """Handle a message. A malformed one stops the worker."""
        try:
            kind, *facts = message
            handle = self._handlers[kind]
            # Only values may be large. All other outcomes are short.
            if (values > _MOST_VALUES or size > _MOST_BYTES) and (
                kind not in _CARRIERS or (kind == "done" and facts[1][0] != VALUE)
            ):
                raise FrameError(f"message too large: {size} bytes, {values} values")  # noqa: TRY301 - as below
            if kind in _ASKED_FOR:
                handle(*facts)
            else:
                begin = thread_time()
                handle(*facts)
                self.channel.budget.charge(size, values, thread_time() - begin)
        except FrameError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            raise FrameError(f"malformed message: {type(error).__name__}") from error

    def _done(self, number: int, outcome: Any) -> None:
        flight = self.flights.pop(number)
        if flight.on_lane:
            self._lane_is_free = True
        if flight.cancelled:
            self.channel.tell(["forget", number])  # it may have arrived after the end, and would apply to a later call
        if not flight.overdue:
            flight.land(outcome)
            return
        flight.fail(self._too_late(flight, "and was canceled"))
        if not any(other.overdue for other in self.flights.values()):
            self.settled.set()

    def _is_ready(self, surfaces: list[Any], waits: bool) -> None:  # noqa: FBT001 - a fact of a message
        infos = [
            SurfaceInfo(kind, name, options, awaits, is_stream, tuple(parameters), hint)
            for kind, name, options, awaits, is_stream, parameters, hint in surfaces
        ]
        types = (str, str, dict, bool, bool, tuple, str)
        if not all(tuple(map(type, info)) == types and set(map(type, info.parameters)) <= {str} for info in infos):
            raise FrameError("a malformed surface")
        self.surfaces = {(info.kind, info.name): info for info in infos}
        self._waits = waits
        if not self._ready.done():
            self._ready.set_result(None)

    def _is_broken(self, outcome: Any) -> None:
        """Raise the error of a failed import to the callers that wait for the worker."""
        try:
            self._released(outcome)
        except SandboxError as error:
            if not self._ready.done():
                _fail(self._ready, error)

    def _denied(self, outcome: Any) -> None:
        """Record a denial; beyond a limit, ignore further ones for a while."""
        now = self._loop.time()
        if now > self._listen_again:
            self._denials, self._listen_again = 0, now + _WINDOW
        self._denials += 1
        if self._denials > _MOST_DENIALS:
            return
        try:
            self._released(outcome)
        except SandboxDenied as denial:
            self._host.denied(self._spec.label, denial)
        except SandboxError:
            return

    def _saw(self, seen: Any) -> None:
        """Record differences to a candidate, up to a limit."""
        now = self._loop.time()
        if now > self._look_again:
            self._seen, self._look_again = 0, now + _WINDOW
        if self._seen < _MOST_SEEN:
            self._seen += self._requests.saw(seen)
