"""Launcher without the kernel layer: ``subprocess``, from the host's own process."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from democrai_sandbox.runtime.child_handle import child_handle

if TYPE_CHECKING:
    from .interface import Order


UNCONFINED = ("files, network and system calls: the kernel does not confine this program to the rules of its subject",)
"""Reported with the result of each program that starts without the spawn server."""


class PopenLauncher:
    """Starts programs as children of this process. Descriptors are closed, the umask is the host's."""

    def start(self, order: Order) -> PopenChild:
        """Start it, or raise ``OSError``."""
        return PopenChild(order)


class PopenChild:
    """A child of this process."""

    unenforced: tuple[str, ...] = UNCONFINED
    timed_out = False
    failure = ""

    def __init__(self, order: Order) -> None:
        """Start it in a new session, so that its group can be signaled separately."""
        self._process = subprocess.Popen(  # noqa: S603 - program and environment were checked, without a shell
            order.argv,
            executable=order.program,
            env=dict(order.environment),
            cwd=order.folder,
            stdin=subprocess.PIPE if order.with_input else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            close_fds=True,
            start_new_session=True,
        )
        self.pid = self._process.pid
        try:
            self.ended = child_handle(self.pid)
            self.stdin, self.stdout, self.stderr = self._take_pipes()
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _take_pipes(self) -> tuple[int | None, int, int]:
        """Return duplicated descriptors, which the reader closes independently of the Popen object."""
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        stdin, stdout, stderr = (None if pipe is None else os.dup(pipe.fileno()) for pipe in pipes)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        if stdout is None or stderr is None:  # pragma: no cover - asked for above
            raise OSError("the child has no output")
        return stdin, stdout, stderr

    def signal_group(self, number: int) -> None:
        """Send a signal; an ended child that was not reaped keeps its pid, so the pid cannot be reused."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            # A process of the group runs as another user, so the kernel refused the whole call.
            os.kill(self.pid, number)

    def collect(self) -> int:
        """Return the exit status."""
        os.close(self.ended)
        return self._process.wait()
