"""One process of a worker, from its start to its end, as the host has it."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from math import inf
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExtensionUnknown, SandboxDenied
from democrai_sandbox.policy import SandboxError, nearest
from democrai_sandbox.runtime.outcomes import release

from .clerk import Clerk
from .codec import encode
from .errors import FrameError, WorkerCrashed, WorkerFailed, WorkerTimeout
from .flights import CREDIT, Flight, StreamFlight
from .interface import NOBODY, SurfaceInfo
from .output import Output
from .process import command_of, environment_of
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from .interface import Host, Process, Starter, WorkerSpec
    from .views import Standing

_LAST_WORDS = 0.2
_MOST_DENIALS = 500
_WINDOW = 10.0


class Link:
    """A process and the calls in it. Used on one loop."""

    def __init__(self, spec: WorkerSpec, host: Host) -> None:
        """Prepare; ``start`` starts the process."""
        self._spec = spec
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._flights: dict[int, Flight] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_look = inf
        self._lane_is_free = True
        self._waits = False
        self._denials = 0
        self._listen_again = 0.0
        self._why = ""
        self._error: type[WorkerFailed] = WorkerCrashed
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._settled = asyncio.Event()
        self._settled.set()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        """Why the process is gone, once it is."""
        self.surfaces: Mapping[tuple[str, str], SurfaceInfo] = {}
        self.has_served = False
        self._clerk = Clerk(spec, host, self._tell, lambda: (flight.standing for flight in self._flights.values()))
        self._handlers: dict[str, Callable[..., None]] = {
            "done": self._done,
            "item": self._item,
            "ask": self._asked,
            "door": self._wanted,
            "denied": self._denied,
            "ready": self._is_ready,
            "broken": self._is_broken,
        }

    # ---- life --------------------------------------------------------------------------------------------------------

    async def start(self, starter: Starter) -> None:
        """Start the process and wait until its code is imported. What goes wrong with it there is raised."""
        spec = self._spec
        first = encode(["init", spec._asdict(), list(self._host.services)])
        near = [socket.socketpair(), socket.socketpair()]
        (lane, far_lane), (control, far_control) = near
        try:
            descriptors = (far_lane.fileno(), far_control.fileno())
            command = command_of(spec, *descriptors)
            self._process = await starter.start(
                command, env=environment_of(spec), pass_fds=descriptors, cwd=spec.folder
            )
        except BaseException as error:
            for end in (lane, control):
                end.close()
            if isinstance(error, OSError):
                raise WorkerFailed(spec.label, f"it could not be started: {error}") from error
            raise
        finally:
            for end in (far_lane, far_control):
                end.close()
        self._open(lane, control)
        self._control.write(first)
        await self._wait_until_ready()

    def _open(self, lane: socket.socket, control: socket.socket) -> None:
        largest = self._spec.largest_frame
        self._lane = Wire(lane, largest, self._heard, self._lost)
        self._control = Wire(control, largest, self._heard, self._lost)
        emit, label = self._host.output, self._spec.label
        self._outputs = (
            Output(self._process.stdout, lambda text: emit(label, "stdout", text)),
            Output(self._process.stderr, lambda text: emit(label, "stderr", text)),
        )
        self._watching = self._loop.create_task(self._watch(self._process))

    async def _wait_until_ready(self) -> None:
        try:
            async with asyncio.timeout(self._spec.start_timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.end(f"it did not finish importing its code within {self._spec.start_timeout:g} s")
            await self.ended
            raise WorkerTimeout(self._spec.label, self._why, output=self._last_words()) from None
        except BaseException:
            self.end("its start was given up")
            raise

    def end(self, why: str) -> None:
        """End the process now, for a reason."""
        self._why = self._why or why
        self._process.kill()

    async def stop(self) -> None:
        """Have the process end: by itself if it does so soon."""
        self._why = self._why or "it was stopped"
        self._tell(["stop"])
        await asyncio.wait([self.ended], timeout=self._spec.grace)
        self._process.kill()
        await self.ended

    async def _watch(self, process: Process) -> None:
        code = await process.wait()
        for wire in (self._lane, self._control):
            wire.read_rest()
            wire.close()
        for output in self._outputs:
            output.drain()
            output.close()
        process.close()
        if self._timer is not None:
            self._timer.cancel()
        why = self._why or _ending(code)
        error = self._error(self._spec.label, why, output=self._last_words())
        flights, self._flights = self._flights, {}
        for flight in flights.values():
            flight.fail(error)
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()
        self._settled.set()
        self.ended.set_result(why)

    def _lost(self, why: str) -> None:
        """End a process that talks nonsense; one that is ending anyway is left to say with which code."""
        if why:
            self._error = WorkerFailed
            self.end(why)
        else:
            self._loop.call_later(_LAST_WORDS, self._process.kill)

    def _last_words(self) -> str:
        return "\n".join(self._outputs[1].last)

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def in_flight(self) -> int:
        """How many calls the worker has not ended."""
        return len(self._flights)

    # ---- calls -------------------------------------------------------------------------------------------------------

    @property
    def is_unsettled(self) -> bool:
        """Whether new calls had better wait: the process is gone, or may soon be ended."""
        return self.ended.done() or not self._settled.is_set()

    async def settled(self) -> None:
        """Wait while it is not known whether the worker will have to be ended for a call that took too long."""
        await self._settled.wait()

    async def call(
        self,
        surface: tuple[str, str],
        params: Mapping[str, Any],
        standing: Standing,
        seconds: float,
        progress: Callable[..., Any] | None,
    ) -> Any:
        """Call a function, and return what it returns or raise what it came to."""
        info = self._surface(surface)
        if info.streams:
            raise ExtensionUnknown(f"{info.kind} {info.name} of {self._spec.label} is a stream")
        flight = Flight(next(self._numbers), standing, self._loop.create_future(), progress)
        self._send(flight, info, params, 0)
        self._limit(flight, seconds)
        try:
            outcome = await flight.future
        except asyncio.CancelledError:
            self._cancel(flight)
            raise
        self.has_served = True
        return self._released(outcome)

    async def stream(
        self,
        surface: tuple[str, str],
        params: Mapping[str, Any],
        standing: Standing,
        seconds: float,
        progress: Callable[..., Any] | None,
    ) -> AsyncIterator[Any]:
        """Yield the items of a generator as they come; no more than a few are made before they are wanted."""
        info = self._surface(surface)
        if not info.streams:
            raise ExtensionUnknown(f"{info.kind} {info.name} of {self._spec.label} is no stream")
        flight = StreamFlight(next(self._numbers), standing, self._loop.create_future(), progress)
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
                    self._tell(["credit", flight.number, more])
                yield value
            self._released(flight.future.result())
            self.has_served = True
        finally:
            if flight.number in self._flights:
                self._cancel(flight)
                self._limit(flight, seconds)

    def changed(self) -> None:
        """Have the guard in the worker ask again about what it was told before."""
        self._tell(["changed"])

    def _tell(self, message: list[Any]) -> None:
        self._control.write(encode(message, largest=self._spec.largest_frame))

    def _surface(self, surface: tuple[str, str]) -> SurfaceInfo:
        found = self.surfaces.get(surface)
        if found is not None:
            return found
        kind, name = surface
        close = nearest(name, [other for sort, other in self.surfaces if sort == kind])
        hint = f"; did you mean {close!r}?" if close else ""
        raise ExtensionUnknown(f"{self._spec.label} has no {kind} {name!r}{hint}")

    def _send(self, flight: Flight, info: SurfaceInfo, params: Mapping[str, Any], credit: int) -> None:
        caller, ancestors = flight.standing
        who = None if caller is NOBODY else tuple(caller)
        message = ["call", flight.number, info.kind, info.name, params, who, ancestors, credit]
        frame = encode(message, largest=self._spec.largest_frame)
        if self._lane.unsent + self._control.unsent > self._spec.largest_frame:
            raise WorkerFailed(self._spec.label, "it does not read what it is sent")
        self._flights[flight.number] = flight
        # A plain function has the lane for itself; tasks share it. A plain generator would keep it for too long.
        if info.awaits:
            self._lane.write(frame)
        elif self._lane_is_free and not self._waits and not info.streams:
            self._lane_is_free = False
            flight.on_lane = True
            self._lane.write(frame)
        else:
            self._control.write(frame)

    def _cancel(self, flight: Flight) -> None:
        if flight.number in self._flights:
            self._tell(["cancel", flight.number])

    def _limit(self, flight: Flight, seconds: float) -> None:
        """Give a call a deadline. One timer does for all: a timer for each would cost more than the call."""
        flight.seconds = seconds
        flight.deadline = self._loop.time() + seconds
        if flight.deadline < self._next_look:
            self._look_at(flight.deadline)

    def _look_at(self, time: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._next_look = time
        self._timer = self._loop.call_at(time, self._look)

    def _look(self) -> None:
        """Cancel the calls whose time is over; those that were, and went on all the same, end the process."""
        self._timer, self._next_look = None, inf
        now = self._loop.time()
        for flight in tuple(self._flights.values()):
            if flight.deadline <= now:
                self._hang(flight) if flight.overdue else self._overdue(flight, now)
        earliest = min((flight.deadline for flight in self._flights.values()), default=inf)
        if earliest < inf:
            self._look_at(earliest)

    def _overdue(self, flight: Flight, now: float) -> None:
        """Cancel a call whose time is over, and give it a little more to end."""
        flight.overdue = True
        flight.deadline = now + self._spec.grace
        self._settled.clear()
        self._cancel(flight)

    def _hang(self, flight: Flight) -> None:
        flight.deadline = inf
        why = "and did not stop when it was cancelled, so its process was ended"
        flight.fail(self._too_late(flight, why))
        self.end(f"another call took longer than {flight.seconds:g} s {why}")

    def _too_late(self, flight: Flight, what: str) -> WorkerTimeout:
        why = f"it took longer than {flight.seconds:g} s {what}"
        return WorkerTimeout(self._spec.label, why, output=self._last_words())

    def _released(self, outcome: Any) -> Any:
        """Read what a call came to. The worker may have made up anything."""
        try:
            return release(outcome)
        except SandboxError:
            raise
        except Exception as error:
            self.end("it sent an answer that is none")
            raise WorkerFailed(self._spec.label, "it sent an answer that is none") from error

    # ---- what the worker says ----------------------------------------------------------------------------------------

    def _heard(self, message: Any) -> None:
        """Do what a message asks for. One that is not of ours ends the worker."""
        try:
            kind, *facts = message
            handle = self._handlers[kind]
            handle(*facts)
        except FrameError:
            raise
        except (TypeError, ValueError, KeyError) as error:
            raise FrameError(f"a message that is none: {type(error).__name__}") from error

    def _done(self, number: int, outcome: Any) -> None:
        flight = self._flights.pop(number)
        if flight.on_lane:
            self._lane_is_free = True
        if not flight.overdue:
            flight.land(outcome)
            return
        flight.fail(self._too_late(flight, "and was cancelled"))
        if not any(other.overdue for other in self._flights.values()):
            self._settled.set()

    def _item(self, number: int, value: Any) -> None:
        self._flights[number].item(value)

    def _is_ready(self, surfaces: list[Any], waits: bool) -> None:  # noqa: FBT001 - a fact of a message
        infos = [SurfaceInfo(*surface) for surface in surfaces]
        self.surfaces = {(info.kind, info.name): info for info in infos}
        self._waits = waits
        if not self._ready.done():
            self._ready.set_result(None)

    def _is_broken(self, outcome: Any) -> None:
        """Take what the import came to; it is raised to whoever wanted the worker."""
        try:
            self._released(outcome)
        except SandboxError as error:
            if not self._ready.done():
                self._ready.set_exception(error)
                self._ready.exception()

    def _asked(self, number: int, fields: Any) -> None:
        self._clerk.decide(number, fields)

    def _wanted(self, number: int, name: str, call: int, who: Any, args: list[Any]) -> None:
        self._clerk.serve(number, name, self._flights.get(call), who, args)

    def _denied(self, outcome: Any) -> None:
        """Take note of a denial; a worker that makes them up, or very many, is not listened to for a while."""
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


def _ending(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"it was ended by signal {name}"
