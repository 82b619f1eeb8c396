"""The host's end of one socket to a worker: never waits, neither to read nor to write."""

from __future__ import annotations

import asyncio
from socket import MSG_PEEK
from typing import TYPE_CHECKING, Any

from .codec import CHUNK, Inbox
from .errors import FrameError

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable


class Wire:
    """Frames out, messages in, on the running loop."""

    def __init__(
        self, end: socket.socket, largest: int, heard: Callable[[Any], None], lost: Callable[[str], None]
    ) -> None:
        """Take a connected socket over. ``lost`` is told once that nothing more will come.

        It also gets what was wrong with what came; nothing, when the other end is just gone.
        """
        self._loop = asyncio.get_running_loop()
        self._socket = end
        self._inbox = Inbox(largest=largest)
        self._heard = heard
        self._lost = lost
        self._unsent = bytearray()
        self._open = True
        end.settimeout(0)
        self._loop.add_reader(end.fileno(), self.read)

    @property
    def unsent(self) -> int:
        """Bytes that the worker has not taken yet."""
        return len(self._unsent)

    def write(self, frame: bytes) -> None:
        """Send a frame now or as soon as the worker reads; nothing happens when the wire is closed."""
        if not self._open:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(frame)
            except BlockingIOError:
                sent = 0
            except OSError:
                self._end("")
                return
            if sent == len(frame):
                return
            self._unsent += memoryview(frame)[sent:]
            self._loop.add_writer(self._socket.fileno(), self._writable)
            return
        self._unsent += frame

    def read(self) -> None:
        """Take what is there; messages are handed on before this returns."""
        if not self._open:
            return
        try:
            size = self._socket.recv_into(self._inbox.room)
        except BlockingIOError:
            return
        except OSError:
            self._end("")
            return
        if not size:
            self._end("")
            return
        try:
            for message in self._inbox.feed(size):
                self._heard(message)
        except FrameError as error:
            self._end(f"it sent what is no frame: {error}")

    def read_rest(self) -> None:
        """Take everything that is left of a process that has ended."""
        while self._open:
            try:
                if not self._socket.recv(1, MSG_PEEK):
                    return
            except OSError:
                return
            self.read()

    def close(self) -> None:
        """Let the socket go. May be called twice."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._unsent.clear()
            self._socket.close()

    def _writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent[:CHUNK])
        except BlockingIOError:
            return
        except OSError:
            self._end("")
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def _end(self, why: str) -> None:
        if self._open:
            self.close()
            self._lost(why)
