"""Host side of a worker's process: started, connected over two sockets, watched until it ends."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.workers import WorkerCrashed, WorkerFailed
from democrai_sandbox.guard.runtime_paths import read_only_paths

from .budget import Allowance, Budget
from .codec import encode
from .output import Output
from .process import command_of, environment_of
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from .interface import Host, Process, Starter, WorkerSpec

_MOST_UNSENT = 1024 * 1024
"""Maximum bytes waiting for a worker to read them, in addition to one frame."""
_LAST_WORDS = 0.2
"""Seconds that a process gets to exit after it closed its sockets, so that its exit code is known."""


class Channel:
    """One process. ``heard`` receives each message with its size in bytes and its number of values.

    ``over`` receives the reason when the process has ended.
    """

    lane: Wire
    control: Wire

    def __init__(
        self, spec: WorkerSpec, host: Host, heard: Callable[[Any, int, int], None], over: Callable[[WorkerFailed], None]
    ) -> None:
        """Prepare the channel; ``start`` starts the process."""
        self._spec = spec
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._over = over
        self._why = ""
        self._error: type[WorkerFailed] = WorkerCrashed
        self.budget = Budget(self._loop.time, Allowance(), spec.largest_frame)

    async def start(self, starter: Starter) -> None:
        """Start the process and send its specification. Its answer arrives later as a message."""
        spec = self._spec
        first = encode(["init", spec._replace(read_only=read_only_paths())._asdict(), list(self._host.services)])
        environment = environment_of(spec)
        (lane, far_lane), (control, far_control) = socket.socketpair(), socket.socketpair()
        try:
            ends = (far_lane.fileno(), far_control.fileno())
            self._process = await starter.start(
                command_of(spec, *ends), env=environment, pass_fds=ends, cwd=spec.folder
            )
        except BaseException as error:
            lane.close()
            control.close()
            if isinstance(error, OSError):
                raise WorkerFailed(spec.label, f"the worker could not be started: {error}") from error
            raise
        finally:
            far_lane.close()
            far_control.close()
        self._open(lane, control)
        self.control.write(first)

    def _open(self, lane: socket.socket, control: socket.socket) -> None:
        largest = self._spec.largest_frame
        self.lane = Wire(lane, largest, self.budget, self._heard, self._lost)
        self.control = Wire(control, largest, self.budget, self._heard, self._lost)
        emit, label = self._host.output, self._spec.label
        self._outputs = (
            Output(self._process.stdout, lambda text: emit(label, "stdout", text)),
            Output(self._process.stderr, lambda text: emit(label, "stderr", text)),
        )
        self._watching = self._loop.create_task(self._watch(self._process))

    def tell(self, message: list[Any]) -> None:
        """Send a message that must not wait for the code that runs on the lane."""
        self.control.write(encode(message, largest=self._spec.largest_frame))
        if self.control.unsent > _MOST_UNSENT + self._spec.largest_frame:
            self.end("the worker does not read its messages", WorkerFailed)

    def end(self, why: str, kind: type[WorkerFailed] = WorkerCrashed) -> None:
        """Kill the process for a reason; the first reason counts."""
        if not self._why:
            self._why, self._error = why, kind
        self._process.kill()

    async def stop(self) -> None:
        """Stop the process: ask it first, then kill it after the grace period."""
        self._why = self._why or "the worker was stopped"
        self.tell(["stop"])
        await asyncio.wait([self._watching], timeout=self._spec.grace)
        self._process.kill()
        await self.gone()

    async def gone(self) -> None:
        """Wait until the process has ended and ``over`` was called."""
        await asyncio.wait([self._watching])

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """Last lines of its standard error."""
        return "\n".join(self._outputs[1].last)

    async def _watch(self, process: Process) -> None:
        code = await process.wait()
        for wire in (self.lane, self.control):
            if not self._why:
                await wire.read_rest()
            wire.close()
        for output in self._outputs:
            output.drain()
            output.close()
        process.close()
        self._over(self._error(self._spec.label, self._why or _ending(code), output=self.last_words))

    def _lost(self, why: str, kind: type[WorkerFailed]) -> None:
        """Kill a process that sent a malformed message; let one that is exiting report its exit code."""
        if why:
            self.end(why, kind)
        else:
            self._loop.call_later(_LAST_WORDS, self._process.kill)


def _ending(code: int) -> str:
    if code >= 0:
        return f"the worker exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"the worker was killed by signal {name}"
