"""Connection of the host to the process of a worker: two sockets, its output, and limits for both.

A worker that has used up its budget is read more slowly; replies to calls are not counted. If many messages stay queued
for a while, the worker is flooding and is stopped.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from socket import MSG_PEEK
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors.extensions import FrameError, WorkerCrashed, WorkerFailed, WorkerFlooded
from democrai_sandbox.guard.runtime_paths import read_only_paths

from .codec import DESCRIPTOR, Frame, FrameReader, SharedMemory, decode, decode_text, encode, encode_parts, unsent
from .process import (
    WorkerHostServices,
    WorkerOutput,
    WorkerProcess,
    WorkerSpec,
    WorkerStarter,
    command_of,
    environment_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


_BYTES_PER_VALUE = 32
"""Cost of a value in addition to its bytes: a small text can decode to many objects."""


def _enlarge(*ends: socket.socket) -> None:
    """Enlarge the buffers of sockets, so that a large frame takes few turns. Without privileges, as far as allowed."""
    for end in ends:
        try:
            end.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, _BUFFER)
        except OSError:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER)


class MessageAllowance(NamedTuple):
    """Limits of a worker per second: messages, bytes, and processor seconds that the host needs to handle them."""

    messages: float = 2_000
    bytes: float = 16 * 1024 * 1024
    seconds: float = 0.15
    burst: float = 5.0
    """Burst capacity, in seconds of these rates."""
    patience: float = 1.5
    """Seconds for which more than the following may be queued."""
    waiting_messages: int = 128
    waiting_bytes: int = 128 * 1024


class MessageBudget:
    """Budget of one worker, over all its sockets."""

    def __init__(self, clock: Callable[[], float], allowance: MessageAllowance, largest: int) -> None:
        """Start with a full budget, large enough for one frame of the largest size."""
        self._clock = clock
        self.allowance = allowance
        self._rates = (allowance.messages, allowance.bytes, allowance.seconds)
        most = [rate * allowance.burst for rate in self._rates]
        most[1] += largest
        self._full = tuple(most)
        self._left = most.copy()
        self._filled_at = clock()
        self._strained_since: float | None = None

    def charge(self, size: int, values: int, seconds: float) -> None:
        """Count a message."""
        left = self._left
        left[0] -= 1
        left[1] -= size + _BYTES_PER_VALUE * values
        left[2] -= seconds

    def wait(self) -> float:
        """Return the seconds until all parts of the budget are positive; 0 if they are now."""
        if min(self._left) > 0:
            return 0.0
        now = self._clock()
        passed, self._filled_at = now - self._filled_at, now
        filled = zip(self._full, self._left, self._rates, strict=True)
        self._left = [min(full, left + rate * passed) for full, left, rate in filled]
        return max(0.0, *(-left / rate for left, rate in zip(self._left, self._rates, strict=True)))

    def is_flooded(self, messages: int, size: int) -> bool:
        """Return whether too much has been queued for too long. Call it only while the budget is used up."""
        if messages < self.allowance.waiting_messages and size < self.allowance.waiting_bytes:
            self._strained_since = None
            return False
        now = self._clock()
        if self._strained_since is None:
            self._strained_since = now
        return now - self._strained_since >= self.allowance.patience


_AT_ONCE = 16
"""Messages that are handled before other tasks run."""
_TURN = 0.002
"""Seconds after which other tasks run in any case."""
_MOST_AT_ONCE = 64
"""Parts of frames that are sent with one system call."""
_BUFFER = 1024 * 1024
_SO_SNDBUFFORCE = 32
"""As for ``SO_SNDBUF``, beyond the limit for users without privileges."""
_LEAST_REST, _LONGEST_REST = 0.02, 0.25
"""Seconds before a worker that has used up its budget is read again."""
_VALUES_PAUSE = 0.005
"""Seconds until bytes values that have not arrived are looked for again. A look can block the loop for 0.3 ms."""
_MALFORMED = "the worker sent a malformed frame: {}"
_readers = ThreadPoolExecutor(2, "frames")
"""Threads that decode large frames, started on demand."""


class HostSocket:
    """Sends frames and receives messages, on the running loop."""

    def __init__(
        self,
        end: socket.socket,
        largest: int,
        budget: MessageBudget,
        heard: Callable[[Any, int, int], None],
        lost: Callable[[str, type[WorkerFailed]], None],
        *,
        shared: SharedMemory | None = None,
    ) -> None:
        """Take over a connected socket. ``heard`` receives each message, its bytes and its number of values.

        ``lost`` is called once when nothing more will arrive, with the problem of the last message, or with an empty
        text when the other end closed the socket.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._largest = largest
        self._shared = shared
        self._inbox = FrameReader(largest=largest, shared=shared)
        self._budget = budget
        self._heard = heard
        self._lost = lost
        self._unsent: deque[memoryview] = deque()
        self.unsent = 0
        """Bytes that the worker has not read yet."""
        self._open = True
        self._listening = False
        self._held: Frame | None = None
        """The next frame, while the budget is used up, or its bytes values are still arriving."""
        self._is_last = False
        """Whether the process has ended, so that nothing more arrives."""
        end.settimeout(0)
        self._listen()

    def encode(self, message: list[Any]) -> tuple[bytes, ...]:
        """Return the frame of a message, in one or more parts. It must be written before the next one is encoded."""
        return encode_parts(message, largest=self._largest, shared=self._shared)

    def write(self, *frame: bytes) -> None:
        """Send a frame, in one or more parts, now or as soon as the worker reads; do nothing when it is closed."""
        self._send(frame)
        if self._shared is not None:
            self._shared.write()

    def _send(self, frame: tuple[bytes, ...]) -> None:
        if not self._open:
            return
        if self._unsent:
            self._keep(frame, 0)
            return
        try:
            sent = self._socket.send(frame[0]) if len(frame) == 1 else self._socket.sendmsg(frame)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end_unless_more()
            return
        self._keep_rest(frame, sent)

    def _keep_rest(self, frame: tuple[bytes, ...], sent: int) -> None:
        """Send the rest of a frame as soon as the worker reads."""
        if sent < sum(map(len, frame)):
            self._keep(frame, sent)
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def give(self, frame: bytes, descriptor: int) -> bool:
        """Send a frame with a descriptor. Return False if the worker does not read its messages."""
        if not self._open or self._unsent:
            return False
        try:
            sent = self._socket.sendmsg(
                (frame,), ((socket.SOL_SOCKET, socket.SCM_RIGHTS, DESCRIPTOR.pack(descriptor)),)
            )
        except OSError:
            return False
        self._keep_rest((frame,), sent)
        return True

    def _keep(self, frame: Sequence[bytes], sent: int) -> None:
        for rest in unsent(frame, sent):
            self._unsent.append(rest)
            self.unsent += len(rest)

    async def read_rest(self) -> None:
        """Handle all remaining messages of a process that has ended."""
        self._is_last = True
        while self._open and (not self._listening or self._has_more()):  # noqa: ASYNC110 - a thread may be reading
            await asyncio.sleep(0 if self._listening else _LEAST_REST / 10)

    def close(self) -> None:
        """Close the socket. May be called repeatedly."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._forget_unsent()
            self._held = None
            if self._shared is not None:
                self._shared.unmap()
            self._socket.close()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Receive available bytes, and handle a few messages before returning."""
        size = self._receive() if self._open else 0
        whole = self._inbox.whole(size) if self._held is None else None
        if whole is not None and self._budget.wait() == 0:
            self._hand_on_whole(whole)
        elif size:
            self._inbox.add(size)
            self._hand_on()

    def _receive(self) -> int:
        """Receive once, and return the number of bytes; 0 if none are available."""
        try:
            size = self._socket.recv_into(self._inbox.room)
        except BlockingIOError:
            return 0
        except OSError:
            size = 0
        if not size:
            self._end("")
        return size

    def _hand_on_whole(self, whole: memoryview | Frame) -> None:
        """Handle the only message, the usual case."""
        try:
            if isinstance(whole, Frame):
                self._take(whole)
                return
            message, values = decode_text(whole)
            self._heard(message, len(whole), values)
        except FrameError as error:
            self._end(_MALFORMED.format(error))

    def _take(self, frame: Frame) -> bool:
        """Handle a frame. Return False when it has to be handled later, or when this was the last one."""
        try:
            message, values = decode(frame)
        except BlockingIOError:
            self._wait_for_values(frame)
            return False
        self._inbox.release(frame)
        self._heard(message, frame.size, values)
        return self._open

    def _hand_on(self) -> None:
        """Handle complete messages within the budget; then listen, rest or continue."""
        until = self._loop.time() + _TURN
        try:
            for _ in range(_AT_ONCE):
                frame = self._held or self._inbox.next()
                if frame is None:
                    self._listen()
                    return
                self._held = frame
                if (seconds := self._budget.wait()) > 0:
                    self._rest(min(max(seconds, _LEAST_REST), _LONGEST_REST))
                    return
                self._held = None
                if frame.is_slow:
                    self._read_aside(frame)
                    return
                if not self._take(frame):
                    return
                frame = None  # release the buffer, which belongs to the inbox
                if self._inbox.is_empty:
                    self._listen()
                    return
                if self._loop.time() > until:
                    break
        except FrameError as error:
            self._end(_MALFORMED.format(error))
            return
        self._deafen()
        self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._open:
            self._hand_on()

    def _rest(self, seconds: float) -> None:
        """Continue after a pause. Check meanwhile whether the worker stopped sending."""
        self._deafen()
        allowed = self._budget.allowance
        if self._inbox.count(allowed.waiting_messages) < allowed.waiting_messages and self._has_more():
            if self._held is not None:
                self._held = self._held.kept()
            self._inbox.keep()
            if size := self._receive():
                self._inbox.add(size)
        if not self._open:
            return
        if self._budget.is_flooded(self._inbox.count(allowed.waiting_messages), self._inbox.size):
            most = f"{allowed.messages} messages, {allowed.bytes} bytes or {allowed.seconds:g} s of host processor time"
            self._end(f"the worker kept sending more than {most} per second", WorkerFlooded)
            return
        self._loop.call_later(seconds, self._go_on)

    def _read_aside(self, frame: Frame) -> None:
        """Decode a large frame on a thread; later messages wait."""
        self._deafen()
        reading = self._loop.run_in_executor(_readers, decode, frame)
        reading.add_done_callback(lambda done: self._was_read(done, frame))

    def _was_read(self, done: asyncio.Future[tuple[Any, int]], frame: Frame) -> None:
        if not self._open or done.cancelled():
            return
        try:
            message, values = done.result()
            self._inbox.release(frame)
            self._heard(message, frame.size, values)
        except BlockingIOError:
            self._wait_for_values(frame)
            return
        except FrameError as error:
            self._end(_MALFORMED.format(error))
            return
        self._go_on()

    def _wait_for_values(self, frame: Frame) -> None:
        """Decode a frame again after a pause, because the worker is still writing its bytes values."""
        if self._is_last:
            self._end("")
            return
        self._held = frame
        self._deafen()
        self._loop.call_later(_VALUES_PAUSE, self._go_on)

    def _listen(self) -> None:
        if not self._listening and self._open:
            self._listening = True
            self._loop.add_reader(self._socket.fileno(), self._read)

    def _deafen(self) -> None:
        if self._listening and self._open:
            self._listening = False
            self._loop.remove_reader(self._socket.fileno())

    def _has_more(self) -> bool:
        try:
            return bool(self._socket.recv(1, MSG_PEEK))
        except OSError:
            return False

    # ---- writing and closing -----------------------------------------------------------------------------------------

    def _writable(self) -> None:
        try:
            sent = self._socket.sendmsg(list(islice(self._unsent, _MOST_AT_ONCE)))
        except BlockingIOError:
            return
        except OSError:
            self._forget_unsent()
            self._loop.remove_writer(self._socket.fileno())
            self._end_unless_more()
            return
        self.unsent -= sent
        while self._unsent and sent >= len(self._unsent[0]):
            sent -= len(self._unsent.popleft())
        if sent:
            self._unsent[0] = self._unsent[0][sent:]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _forget_unsent(self) -> None:
        self._unsent.clear()
        self.unsent = 0

    def _end_unless_more(self) -> None:
        """Close a wire that cannot send any more, unless unread data is left."""
        if self._listening and not self._has_more():
            self._end("")

    def _end(self, why: str, kind: type[WorkerFailed] = WorkerFailed) -> None:
        if self._open:
            self.close()
            self._lost(why, kind)


_MOST_UNSENT = 1024 * 1024
"""Maximum bytes waiting for a worker to read them, in addition to one frame."""
_LAST_WORDS = 0.2
"""Seconds that a process gets to exit after it closed its sockets, so that its exit code is known."""


class Channel:
    """One process. ``heard`` receives each message with its size in bytes and its number of values.

    ``over`` receives the reason when the process has ended.
    """

    lane: HostSocket
    control: HostSocket

    def __init__(
        self,
        spec: WorkerSpec,
        host: WorkerHostServices,
        heard: Callable[[Any, int, int], None],
        over: Callable[[WorkerFailed], None],
    ) -> None:
        """Prepare the channel; ``start`` starts the process."""
        self._spec = spec
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._over = over
        self._why = ""
        self._error: type[WorkerFailed] = WorkerCrashed
        self.budget = MessageBudget(self._loop.time, MessageAllowance(), spec.largest_frame)

    async def start(self, starter: WorkerStarter) -> None:
        """Start the process with its specification. Its answer arrives later as a message."""
        try:
            await self._start(starter)
        except OSError as error:
            raise WorkerFailed(self._spec.label, f"the worker could not be started: {error}") from error

    async def _start(self, starter: WorkerStarter) -> None:
        spec = self._spec
        first = encode(["init", spec._replace(read_only=read_only_paths())._asdict(), list(self._host.services)])
        environment = environment_of(spec)
        (lane, far_lane), (control, far_control) = socket.socketpair(), socket.socketpair()
        _enlarge(lane, far_lane)
        shared = SharedMemory.create()
        try:
            control.setblocking(False)  # noqa: FBT003 - positional-only
            sent = control.send(first)  # in advance, so that the process need not wait for it
            ends = (far_lane.fileno(), far_control.fileno(), shared.descriptor)
            self._process = await starter.start(
                command_of(spec, *ends), env=environment, pass_fds=ends, cwd=spec.folder
            )
        except BaseException:
            lane.close()
            control.close()
            shared.unmap()
            raise
        finally:
            far_lane.close()
            far_control.close()
            shared.close_descriptor()
        self._open(lane, control, shared)
        if sent < len(first):
            self.control.write(first[sent:])

    def _open(self, lane: socket.socket, control: socket.socket, shared: SharedMemory) -> None:
        largest = self._spec.largest_frame
        self.lane = HostSocket(lane, largest, self.budget, self._heard, self._lost, shared=shared)
        self.control = HostSocket(control, largest, self.budget, self._heard, self._lost)
        emit, label = self._host.output, self._spec.label
        self._outputs = (
            WorkerOutput(self._process.stdout, lambda text: emit(label, "stdout", text)),
            WorkerOutput(self._process.stderr, lambda text: emit(label, "stderr", text)),
        )
        self._watching = self._loop.create_task(self._watch(self._process))

    def tell(self, message: list[Any]) -> None:
        """Send a message that must not wait for the code that runs on the lane."""
        self.control.write(*self.control.encode(message))
        if self.control.unsent > _MOST_UNSENT + self._spec.largest_frame:
            self.end("the worker does not read its messages", WorkerFailed)

    def give(self, message: list[Any], descriptor: int) -> bool:
        """Send a message with a descriptor. Return False if the worker does not read its messages."""
        return self.control.give(encode(message), descriptor)

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

    async def _watch(self, process: WorkerProcess) -> None:
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
