"""Listener for the cases that only connect: in the worker itself, so that no other process runs meanwhile."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

HOST = "127.0.0.1"
WAITING = 4096
"""Backlog: several times the connections of a sample."""


class DiscardServer:
    """Listener that leaves connections in the backlog, and drops them outside the measured time."""

    def __init__(self) -> None:
        self._listener = socket.create_server((HOST, 0), backlog=WAITING)
        self._listener.settimeout(0)
        # They end with a reset, so that their ports are free again: a run needs more ports than exist.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.port = int(self._listener.getsockname()[1])

    def empty(self) -> None:
        """Drop the waiting connections."""
        with suppress(BlockingIOError):
            while True:
                self._listener.accept()[0].close()
