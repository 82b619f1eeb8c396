"""Let children join their cgroup: a child asks over a socket, and the helper moves the process that the kernel names.

The file for joining a cgroup is never handed out. The kernel only checks its opener, which is root, so its holder could
move any process of the machine into the cgroup, cut it off from the network, and have it killed.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from .answers import Refused

if TYPE_CHECKING:
    from .journal import Journal
    from .peers import Family

ENTERED, REFUSED = b"1", b"0"
_CREDENTIALS = struct.Struct("3i")
_SPACE = socket.CMSG_SPACE(_CREDENTIALS.size)


class Entrances:
    """Open entry sockets: one per child that has not joined yet."""

    def __init__(self, family: Family, journal: Journal) -> None:
        """Start without sockets; the first one starts the thread."""
        self._family = family
        self._journal = journal
        self._lock = threading.Lock()
        self._open: dict[int, tuple[socket.socket, int]] = {}
        self._events: select.epoll | None = None

    def opened(self, procs: int) -> int:
        """Take over the file of a cgroup; return the descriptor over which one process can ask to join."""
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError:
            os.close(procs)
            raise
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.settimeout(0)
        with self._lock:
            if self._events is None:
                self._events = select.epoll()
                threading.Thread(target=self._serve, args=(self._events,), name="entrances", daemon=True).start()
            self._open[ours.fileno()] = (ours, procs)
            self._events.register(ours, select.EPOLLIN)
        return theirs.detach()

    def _serve(self, events: select.epoll) -> None:
        while True:
            for number, _ in events.poll():
                with self._lock:
                    ours, procs = self._open.pop(number)
                    events.unregister(number)
                try:
                    with ours, suppress(OSError):
                        self._let_in(ours, procs)
                finally:
                    os.close(procs)

    def _let_in(self, ours: socket.socket, procs: int) -> None:
        data, control, _, _ = ours.recvmsg(1, _SPACE)
        if not data:
            return  # closed without being used
        answer = REFUSED
        try:
            pid = next(_CREDENTIALS.unpack(value)[0] for _, kind, value in control if kind == socket.SCM_CREDENTIALS)
            with self._family.target(pid) as target:
                target.check()
                os.write(procs, str(pid).encode())
            answer = ENTERED
        except Refused as refused:
            self._journal.say(f"a process may not join a child's cgroup: {refused}")
        except (OSError, StopIteration) as error:
            self._journal.say(f"a process could not be moved into a child's cgroup: {error}")
        ours.send(answer, socket.MSG_NOSIGNAL)
