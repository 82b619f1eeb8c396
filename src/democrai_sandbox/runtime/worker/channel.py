"""The process of a worker as the host holds it: started, talked to over two sockets, watched until it is gone."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING, Any

from democrai_sandbox.guard.runtime_paths import read_only_paths

from .budget import Allowance, Budget
from .codec import encode
from .errors import WorkerCrashed, WorkerFailed
from .output import Output
from .process import command_of, environment_of
from .wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from .interface import Host, Process, Starter, WorkerSpec

_MOST_UNSENT = 1024 * 1024
"""Bytes that may wait for a worker to read them, besides one frame."""
_LAST_WORDS = 0.2
"""Seconds for a process that closed its sockets to end by itself, so that it can be told how it did."""


class Channel:
    """One process. ``heard`` gets each message with its bytes and its number of values.

    ``over`` gets why there will be no more, when the process is gone.
    """

    lane: Wire
    control: Wire

    def __init__(
        self, spec: WorkerSpec, host: Host, heard: Callable[[Any, int, int], None], over: Callable[[WorkerFailed], None]
    ) -> None:
        """Prepare; ``start`` starts it."""
        self._spec = spec
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._over = over
        self._why = ""
        self._error: type[WorkerFailed] = WorkerCrashed
        self.budget = Budget(self._loop.time, Allowance(), spec.largest_frame)

    async def start(self, starter: Starter) -> None:
        """Start the process and say whom it is for. What it makes of that is heard later."""
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
                raise WorkerFailed(spec.label, f"it could not be started: {error}") from error
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
        """Send something that must not wait for what runs on the lane."""
        self.control.write(encode(message, largest=self._spec.largest_frame))
        if self.control.unsent > _MOST_UNSENT + self._spec.largest_frame:
            self.end("it does not read what it is sent", WorkerFailed)

    def end(self, why: str, kind: type[WorkerFailed] = WorkerCrashed) -> None:
        """End the process now, for a reason; the first reason counts."""
        if not self._why:
            self._why, self._error = why, kind
        self._process.kill()

    async def stop(self) -> None:
        """Have the process end: by itself if it does so soon."""
        self._why = self._why or "it was stopped"
        self.tell(["stop"])
        await asyncio.wait([self._watching], timeout=self._spec.grace)
        self._process.kill()
        await self.gone()

    async def gone(self) -> None:
        """Wait until the process has ended and ``over`` was told."""
        await asyncio.wait([self._watching])

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    @property
    def last_words(self) -> str:
        """The end of what it wrote to its standard error."""
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
        """End a process that talks nonsense; one that is ending anyway is left to say with which code."""
        if why:
            self.end(why, kind)
        else:
            self._loop.call_later(_LAST_WORDS, self._process.kill)


def _ending(code: int) -> str:
    if code >= 0:
        return f"it ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"it was ended by signal {name}"
