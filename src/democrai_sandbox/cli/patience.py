"""HTTP answer with a deadline, also for slow senders."""

from __future__ import annotations

import http.client
import io
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket


class TimedAnswer(http.client.HTTPResponse):
    """HTTP response that raises ``TimeoutError`` after its deadline, or after a pause that is too long."""

    def __init__(self, sock: socket.socket, *rest: Any, longest: float, **named: Any) -> None:
        """Read from a socket, whose timeout is the longest pause."""
        super().__init__(sock, *rest, **named)
        self._timed = _Timed(sock, self.fp.detach(), longest)
        self.fp = io.BufferedReader(self._timed)

    def prolong(self) -> None:
        """Restart the deadline."""
        self._timed.prolong()


class _Timed(io.RawIOBase):
    """Reader of a socket with a deadline."""

    def __init__(self, sock: socket.socket, stream: io.RawIOBase, longest: float) -> None:
        self._sock = sock
        self._stream = stream
        self._longest = longest
        self._pause = sock.gettimeout() or longest
        self.prolong()

    def prolong(self) -> None:
        self._until = monotonic() + self._longest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._until - monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(min(left, self._pause))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()
