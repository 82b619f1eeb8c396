"""How a child comes into its control group: it asks by a socket, and the helper moves whom the kernel says it is.

The file by which a group is entered is never handed out. The kernel asks only who has opened it, and that is root: its
holder could name any process of the machine, take the network from it, and have it killed with the group.
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
    """The open entrances: one for each child that has not come yet."""

    def __init__(self, family: Family, journal: Journal) -> None:
        """Begin without any; the thread comes with the first."""
        self._family = family
        self._journal = journal
        self._lock = threading.Lock()
        self._open: dict[int, tuple[socket.socket, int]] = {}
        self._events: select.epoll | None = None

    def opened(self, procs: int) -> int:
        """Take over the file of a group; return the descriptor by which one process can ask to be moved in."""
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
            return  # it was closed without being used
        answer = REFUSED
        try:
            pid = next(_CREDENTIALS.unpack(value)[0] for _, kind, value in control if kind == socket.SCM_CREDENTIALS)
            with self._family.target(pid) as target:
                target.check()
                os.write(procs, str(pid).encode())
            answer = ENTERED
        except Refused as refused:
            self._journal.say(f"a process was not let into a child's group: {refused}")
        except (OSError, StopIteration) as error:
            self._journal.say(f"a process could not be moved into a child's group: {error}")
        ours.send(answer, socket.MSG_NOSIGNAL)
