"""Worker's ends of its two sockets: blocking reads and writes, one writer at a time."""

from __future__ import annotations

import _socket
import threading
from collections import deque
from typing import Any

from democrai_sandbox.errors import ResultInvalid
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.outcomes import describe

from .codec import Inbox, encode


class Line:
    """One socket to the host."""

    def __init__(self, descriptor: int, largest: int) -> None:
        """Take over a connected socket. The guard refuses its descriptor to guarded code."""
        # Native, because guarded code cannot replace methods of its class.
        self._socket = _socket.socket(fileno=descriptor)
        self._socket.settimeout(None)
        self._largest = largest
        self._inbox = Inbox(largest=largest)
        self._read: deque[Any] = deque()
        self._writing = threading.Lock()

    def fileno(self) -> int:
        """Return the descriptor, for an event loop."""
        return self._socket.fileno()

    def receive(self) -> Any:
        """Wait for the next message; None when the host is gone."""
        while not self._read:
            size = self._socket.recv_into(self._inbox.room)
            if not size:
                return None
            messages = self._inbox.feed(size)
            if len(messages) == 1:
                return messages[0]
            self._read.extend(messages)
        return self._read.popleft()

    def receive_now(self) -> list[Any] | None:
        """Return the messages available without waiting; None when the host is gone."""
        try:
            size = self._socket.recv_into(self._inbox.room, 0, _socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        return self._inbox.feed(size) if size else None

    def send(self, message: Any) -> None:
        """Send a message. Raise ``InvalidInputError``, without sending, if it cannot be encoded."""
        frame = encode(message, largest=self._largest)
        with self._writing:
            self._socket.sendall(frame)

    def reply(self, number: int, outcome: Any) -> None:
        """Send the outcome of a call; if it cannot be encoded, send that error instead."""
        try:
            self.send(["done", number, outcome])
        except InvalidInputError as error:
            self.send(["done", number, describe(ResultInvalid.of(error.problems))])
