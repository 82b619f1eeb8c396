"""A program that the spawn server has started, as the application sees it."""

from __future__ import annotations

import select
import signal
import socket
import threading
from contextlib import suppress
from os import close
from signal import pidfd_send_signal
from typing import TYPE_CHECKING

from democrai_sandbox.errors import SpawnFailed

from . import wire

if TYPE_CHECKING:
    import _socket

_STATUS_SECONDS = 5.0
"""For the server to tell the exit status of a program that has ended: it ends what is left of it before."""
_WHOLE_GROUP = 4
"""PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9."""


_QUIET, _BOTH_WAYS, _KILL = int(socket.MSG_NOSIGNAL), int(socket.SHUT_RDWR), int(signal.SIGKILL)


class SpawnedChild:
    """A child of the server, the leader of a session of its own.

    Its number stays its own until ``collect`` or ``close``, also when it has ended. Closing ends what is left of it.
    """

    __slots__ = ("_lifeline", "_lock", "_returncode", "missing", "pid", "pidfd", "timed_out")

    def __init__(self, pid: int, pidfd: int, lifeline: _socket.socket, missing: tuple[str, ...]) -> None:
        """Take over the handle and the lifeline."""
        self.pid = pid
        self.pidfd = pidfd
        """Readable once the program has ended; closed with the rest."""
        self.missing = missing
        """Paths that were to be open to it and do not exist, so they are not."""
        self.timed_out = False
        """Whether it was ended because its time was up; known after ``collect``."""
        self._lifeline = lifeline
        self._returncode: int | None = None
        self._lock = threading.Lock()

    @property
    def ended(self) -> int:
        """A descriptor that is readable once the program has ended: the lifeline, which is for nobody else to read."""
        return self._lifeline.fileno()

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group; to one that has ended, nothing."""
        with self._lock:
            if self._lifeline.fileno() < 0:
                return
            try:
                self._lifeline.send(bytes([number]), _QUIET)
            except OSError:
                self._signal_directly(number)
            else:
                if number == _KILL:  # a server that stands still passes nothing on
                    self._signal_directly(number)

    def collect(self) -> int:
        """Return the exit status, negative for a signal, once the program has ended; let everything go."""
        if self._returncode is None:
            packet = self._status()
            try:
                if len(packet) != wire.STATUS.size:
                    # The server is gone, and the kernel ends its children with it. How exactly they ended nobody knows.
                    self._signal_directly(_KILL)
                    raise SpawnFailed(f"the spawn server has ended, and with it the program {self.pid}")
                self._returncode, self.timed_out = wire.STATUS.unpack(packet)
            finally:
                self.close()
        return self._returncode

    def close(self) -> None:
        """Have what is left of the child ended, and let everything go."""
        with self._lock:
            if self._lifeline.fileno() < 0:
                return
            # A fork of the application may hold the lifeline too; the server is to see its end all the same.
            with suppress(OSError):
                self._lifeline.shutdown(_BOTH_WAYS)
            self._lifeline.close()
            close(self.pidfd)

    def _status(self) -> bytes:
        poll = select.poll()
        lifeline = self._lifeline.fileno()
        poll.register(lifeline, select.POLLIN)
        poll.register(self.pidfd, select.POLLIN)
        told = any(number == lifeline for number, _ in poll.poll())
        if not told:
            # It has ended, and the server says how in a moment, unless it stands still.
            poll.unregister(self.pidfd)
            told = bool(poll.poll(_STATUS_SECONDS * 1000))
        try:
            return self._lifeline.recv(wire.STATUS.size) if told else b""
        except (BlockingIOError, ConnectionError):
            return b""

    def _signal_directly(self, number: int) -> None:
        """Send a signal without the server, which is gone; the handle can mean no other process."""
        for flags in (_WHOLE_GROUP, 0):
            with suppress(OSError):  # an old kernel, a confined application, nobody there
                pidfd_send_signal(self.pidfd, number, None, flags)
