"""A listener for the cases that only connect: in the worker itself, so that nothing else runs while they do."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

HOST = "127.0.0.1"
WAITING = 4096
"""Connections that may wait to be accepted: several times what a sample makes."""


class Sink:
    """Lets connections wait, which the kernel makes by itself, and drops them when the clock stands."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0), backlog=WAITING)
        self._listener.settimeout(0)
        # They end with a reset, so that their ports are free again at once: a run needs more than there are.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.port = int(self._listener.getsockname()[1])

    def empty(self) -> None:
        """Drop what waits."""
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
