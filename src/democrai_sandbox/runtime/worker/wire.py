"""Host's end of one socket to a worker: never blocks, neither to read nor to write.

Only a few messages are handled at a time, so that a busy worker does not delay other tasks on the loop. Large frames
are decoded on a thread. Until the received messages are handled nothing more is received, so the worker has to wait.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from socket import MSG_PEEK
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors.workers import FrameError, WorkerFailed, WorkerFlooded

from .codec import CHUNK, Frame, Inbox, decode

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from .budget import Budget

_AT_ONCE = 16
"""Messages that are handled before other tasks run."""
_TURN = 0.002
"""Seconds after which other tasks run in any case."""
_LEAST_REST, _LONGEST_REST = 0.02, 0.25
"""Seconds before a worker that has used up its budget is read again."""
_readers = ThreadPoolExecutor(2, "frames")
"""Threads that decode large frames, started on demand."""


class Wire:
    """Sends frames and receives messages, on the running loop."""

    def __init__(
        self,
        end: socket.socket,
        largest: int,
        budget: Budget,
        heard: Callable[[Any, int, int], None],
        lost: Callable[[str, type[WorkerFailed]], None],
    ) -> None:
        """Take over a connected socket. ``heard`` receives each message, its bytes and its number of values.

        ``lost`` is called once when nothing more will arrive, with the problem of the last message, or with an empty
        text when the other end closed the socket.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._inbox = Inbox(largest=largest)
        self._budget = budget
        self._heard = heard
        self._lost = lost
        self._unsent = bytearray()
        self._open = True
        self._listening = False
        self._held: Frame | None = None
        """The next frame, while the budget is used up."""
        end.settimeout(0)
        self._listen()

    @property
    def unsent(self) -> int:
        """Bytes that the worker has not read yet."""
        return len(self._unsent)

    def write(self, frame: bytes) -> None:
        """Send a frame now or as soon as the worker reads; do nothing when the wire is closed."""
        if not self._open:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._end_unless_more()
                return
            if sent == len(frame):
                return
            self._unsent += memoryview(frame)[sent:]
            self._loop.add_writer(self._socket.fileno(), self._writable)
            return
        self._unsent += frame

    async def read_rest(self) -> None:
        """Handle all remaining messages of a process that has ended."""
        while self._open and (not self._listening or self._has_more()):  # noqa: ASYNC110 - a thread may be reading
            await asyncio.sleep(0 if self._listening else _LEAST_REST / 10)

    def close(self) -> None:
        """Close the socket. May be called repeatedly."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._unsent.clear()
            self._held = None
            self._socket.close()

    # ---- reading -----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Receive available bytes, and handle a few messages before returning."""
        if self._open and self._receive():
            self._hand_on()

    def _receive(self) -> bool:
        """Receive once, if data is available."""
        try:
            size = self._socket.recv_into(self._inbox.room)
        except BlockingIOError:
            return False
        except OSError:
            size = 0
        if not size:
            self._end("")
            return False
        self._inbox.add(size)
        return True

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
                message, values = decode(frame)
                size = frame.size
                frame = None  # release the buffer, which belongs to the inbox
                self._heard(message, size, values)
                if not self._open:
                    return
                if self._inbox.is_empty:
                    self._listen()
                    return
                if self._loop.time() > until:
                    break
        except FrameError as error:
            self._end(f"the worker sent a malformed frame: {error}")
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
            self._receive()
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
        reading.add_done_callback(lambda done: self._was_read(done, frame.size))

    def _was_read(self, done: asyncio.Future[tuple[Any, int]], size: int) -> None:
        if not self._open or done.cancelled():
            return
        try:
            message, values = done.result()
            self._heard(message, size, values)
        except FrameError as error:
            self._end(f"the worker sent a malformed frame: {error}")
            return
        self._go_on()

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
            sent = self._socket.send(self._unsent[:CHUNK])
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
            self._loop.remove_writer(self._socket.fileno())
            self._end_unless_more()
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _end_unless_more(self) -> None:
        """Close a wire that cannot send any more, unless unread data is left."""
        if self._listening and not self._has_more():
            self._end("")

    def _end(self, why: str, kind: type[WorkerFailed] = WorkerFailed) -> None:
        if self._open:
            self.close()
            self._lost(why, kind)
