"""Template process as seen by the spawn server: an interpreter with the runtime imported, which is forked for workers.

The server starts it, sends it a request for each worker, and restarts it after its end. A fork that waits in advance
takes the request. Standard library only, because the server loads single files.
"""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import socket
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEND_BUFFER = 1024 * 1024
_PAUSE = 1.0
"""Seconds before the next attempt after a template that ended without having forked a worker."""
ANSWER_SECONDS = 6.0
"""Seconds for the template to fork a worker; includes its own start, and the helper's answer to the worker."""
_ORDINARY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


class PendingFork(NamedTuple):
    """Worker that the template forks; ``report`` tells its process id or a failure."""

    report: int
    lifeline: int
    wall_seconds: float | None
    nice: int
    missing: list[str]
    mark: int
    deadline: float
    group: str
    """Its pids cgroup; empty for none."""


class TemplateHandle:
    """The template, started on the first request, and the workers that it has not reported yet."""

    def __init__(self, command: Sequence[str], events: select.epoll, mark: tuple[int, int]) -> None:
        """Take the command of the template; its last argument becomes the number of its socket. Empty for none.

        ``mark`` is the resource and the limit that mark the template and its waiting fork.
        """
        self.command = list(command)
        self._mark = mark
        self.pid = 0
        self.descriptor = -1
        """Readable after the template has ended; -1 while none runs."""
        self.has_forked = False
        """Whether the template works."""
        self.pending: dict[int, PendingFork] = {}
        """By report descriptor."""
        self._events = events
        self._link: socket.socket | None = None
        self._not_before = 0.0

    def start(self) -> None:
        """Start the template, unless it runs or has failed a moment ago."""
        if not self.command or self.pid or time.monotonic() < self._not_before:
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            ours.setblocking(False)  # noqa: FBT003 - positional-only
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    resource.setrlimit(self._mark[0], (self._mark[1], self._mark[1]))
                    _execute([*self.command, str(theirs.fileno())], theirs.fileno())
                finally:
                    os._exit(127)
        self._link = ours
        self.has_forked = False
        self.descriptor = os.pidfd_open(self.pid)
        self._events.register(self.descriptor, select.EPOLLIN)

    def send(self, packet: bytes, descriptors: Sequence[int], fork: PendingFork) -> None:
        """Request a worker; raise ``OSError`` without a template that can take the request."""
        self.start()
        if self._link is None:
            raise OSError(errno.ECHILD, "no template process")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))]
        self._events.register(fork.report, select.EPOLLIN)
        try:
            self._link.sendmsg([packet], rights, socket.MSG_NOSIGNAL)
        except OSError:
            self._events.unregister(fork.report)
            raise
        self.pending[fork.report] = fork

    def take(self, report: int) -> PendingFork:
        """Return a reported worker, and forget it."""
        self._events.unregister(report)
        return self.pending.pop(report)

    def next_deadline(self) -> float | None:
        """Return the moment when the template is too late with a worker, or when the next one is started."""
        moments = [fork.deadline for fork in self.pending.values()]
        if self.command and not self.pid:
            moments.append(self._not_before)
        return min(moments, default=None)

    def late(self, now: float) -> list[PendingFork]:
        """Return the workers that were not reported in time, and end their template; start one if none runs."""
        self.start()
        late = [self.take(fork.report) for fork in tuple(self.pending.values()) if fork.deadline <= now]
        if late and self.pid:
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)  # it may be stopped; an unreaped child, so the id is its own
        return late

    def ended(self) -> None:
        """Reap the template after its end; after a failure, the next one starts a while later."""
        self.end()
        if not self.has_forked:
            self._not_before = time.monotonic() + _PAUSE

    def end(self) -> None:
        """Kill and reap the template."""
        if not self.pid:
            return
        with suppress(OSError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self._events.unregister(self.descriptor)
        os.close(self.descriptor)
        if self._link is not None:
            self._link.close()
        self._link, self.pid, self.descriptor = None, 0, -1


def _execute(command: list[str], link: int) -> NoReturn:
    """Execute the template in a new session, with the usual signals; the server ignores some."""
    os.setsid()
    for number in _ORDINARY:
        signal.signal(number, signal.SIG_DFL)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.set_inheritable(link, True)  # noqa: FBT003 - positional-only
    os.execv(command[0], command)  # noqa: S606 - this interpreter
