"""The launcher without any help of the kernel: ``subprocess``, from the host's own process."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from democrai_sandbox.runtime.child_handle import child_handle

if TYPE_CHECKING:
    from .interface import Order


class PopenLauncher:
    """Starts programs as children of this process. Descriptors are closed, the umask is the host's."""

    def start(self, order: Order) -> PopenChild:
        """Start it, or raise ``OSError``."""
        return PopenChild(order)


class PopenChild:
    """A child of this process."""

    unenforced: tuple[str, ...] = ()
    timed_out = False
    failure = ""

    def __init__(self, order: Order) -> None:
        """Start it in a session of its own, so that its group can be ended without ours."""
        self._process = subprocess.Popen(  # noqa: S603 - program and environment were checked, and there is no shell
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
        """Return numbers of our own: who pumps them closes each when it is done, whatever the Popen object does."""
        pipes = (self._process.stdin, self._process.stdout, self._process.stderr)
        stdin, stdout, stderr = (None if pipe is None else os.dup(pipe.fileno()) for pipe in pipes)
        for pipe in pipes:
            if pipe is not None:
                pipe.close()
        if stdout is None or stderr is None:  # pragma: no cover - asked for above
            raise OSError("the child has no output")
        return stdin, stdout, stderr

    def signal_group(self, number: int) -> None:
        """Send a signal; a child that has ended and was not collected keeps its number, so no other can get it."""
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            # Something of the group runs as another user, which the kernel takes for a refusal of the whole call.
            os.kill(self.pid, number)

    def collect(self) -> int:
        """Return the exit status."""
        os.close(self.ended)
        return self._process.wait()
