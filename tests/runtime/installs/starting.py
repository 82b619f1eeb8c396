"""Start of children in pytest's own process, in which the guard is not imported."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess


class Starter:
    """Starts children like the runtime, without the guard."""

    async def start(self, argv, *, env, pass_fds, cwd):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        more = {"pass_fds": pass_fds, "start_new_session": True, "bufsize": 0}
        return Started(subprocess.Popen(argv, env=env, cwd=cwd, **pipes, **more))


class Started:
    def __init__(self, child):
        self._child = child
        self.stdout, self.stderr = child.stdout.fileno(), child.stderr.fileno()

    def kill(self):
        if self._child.returncode is None:
            os.killpg(self._child.pid, signal.SIGKILL)

    async def wait(self):
        while self._child.poll() is None:
            await asyncio.sleep(0.01)
        return self._child.returncode

    def close(self):
        self._child.stdout.close()
        self._child.stderr.close()
