"""Program started by the spawn server, as seen by the application."""

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
"""Seconds for the server to report the exit status of an ended program, after killing its remaining processes."""
_WHOLE_GROUP = 4
"""PIDFD_SIGNAL_PROCESS_GROUP, since Linux 6.9."""


_QUIET, _BOTH_WAYS, _KILL = int(socket.MSG_NOSIGNAL), int(socket.SHUT_RDWR), int(signal.SIGKILL)


class SpawnedChild:
    """Child of the spawn server and leader of its session.

    Its process id is not reused before ``collect`` or ``close``, even after its end. Closing kills its remaining
    processes.
    """

    __slots__ = ("_lifeline", "_lock", "_returncode", "missing", "pid", "pidfd", "timed_out")

    def __init__(self, pid: int, pidfd: int, lifeline: _socket.socket, missing: tuple[str, ...]) -> None:
        """Take over the process descriptor and the lifeline."""
        self.pid = pid
        self.pidfd = pidfd
        """Readable after the program has ended; closed with the rest."""
        self.missing = missing
        """Allowed paths that do not exist, so the child cannot use them."""
        self.timed_out = False
        """Whether it was killed by its timeout; known after ``collect``."""
        self._lifeline = lifeline
        self._returncode: int | None = None
        self._lock = threading.Lock()

    @property
    def ended(self) -> int:
        """Descriptor that is readable after the program has ended: the lifeline. Do not read from it."""
        return self._lifeline.fileno()

    def signal_group(self, number: int) -> None:
        """Send a signal to the program and its group, unless it has ended."""
        with self._lock:
            if self._lifeline.fileno() < 0:
                return
            try:
                self._lifeline.send(bytes([number]), _QUIET)
            except OSError:
                self._signal_directly(number)
            else:
                if number == _KILL:  # a stopped server does not forward signals
                    self._signal_directly(number)

    def collect(self) -> int:
        """Return the exit status, negative for a signal, after the program has ended, and close all descriptors."""
        if self._returncode is None:
            packet = self._status()
            try:
                if len(packet) != wire.STATUS.size:
                    # The server has ended, and the kernel kills its children with it. Their exit status is unknown.
                    self._signal_directly(_KILL)
                    raise SpawnFailed(f"the spawn server has ended, and the program {self.pid} with it")
                self._returncode, self.timed_out = wire.STATUS.unpack(packet)
            finally:
                self.close()
        return self._returncode

    def close(self) -> None:
        """Kill the remaining processes of the child and close all descriptors."""
        with self._lock:
            if self._lifeline.fileno() < 0:
                return
            # A fork of the application may also hold the lifeline; shutting it down notifies the server anyway.
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
            # It has ended; the server reports the status next, unless it is stopped.
            poll.unregister(self.pidfd)
            told = bool(poll.poll(_STATUS_SECONDS * 1000))
        try:
            return self._lifeline.recv(wire.STATUS.size) if told else b""
        except (BlockingIOError, ConnectionError):
            return b""

    def _signal_directly(self, number: int) -> None:
        """Send a signal without the server. The descriptor cannot refer to another process."""
        for flags in (_WHOLE_GROUP, 0):
            with suppress(OSError):  # an old kernel, a confined application, or an ended process
                pidfd_send_signal(self.pidfd, number, None, flags)
