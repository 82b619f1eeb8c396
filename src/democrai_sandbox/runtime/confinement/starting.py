"""Starter with confinement: workers and installations are confined to the rules of their subject."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from democrai_sandbox.errors import SpawnFailed

from .confining import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from democrai_sandbox.kernel.spawn import SpawnedChild

    from .confining import Confiner, Prepared
    from .interface import Whose


_starts = ThreadPoolExecutor(16, "starts")
"""Separate threads, so that a spawn server or helper that hangs does not block other work."""


class ConfinedStarter:
    """Starts processes of one subject through the spawn server. Its rights are read at each start."""

    def __init__(self, confiner: Confiner, whose: Callable[[], Whose | None]) -> None:
        """Take ``whose``, which returns None for a program of the host."""
        self._confiner = confiner
        self._whose = whose

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str
    ) -> ConfinedProcess:
        """Start a program in a new session with these descriptors and without standard input."""
        prepared = await self._prepared()
        what = Program(argv[0], tuple(argv), env, cwd, pass_fds=tuple(pass_fds))
        # On a thread, because the spawn server may block.
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(_starts, ConfinedProcess, self._confiner, prepared, what)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # A canceled caller closes the descriptors, whose numbers are reused: wait until the start is over.
            await _over(work)
            if not work.cancelled() and work.exception() is None:
                work.result().kill()
                work.result().close()
            raise

    async def _prepared(self) -> Prepared:
        """Prepare it on a thread, because the helper may block."""
        work = asyncio.get_running_loop().run_in_executor(_starts, self._confiner.prepare, self._whose())
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._give_back)
            raise

    def _give_back(self, work: asyncio.Future[Prepared]) -> None:
        if not work.cancelled() and work.exception() is None:
            # On a thread, because the helper may block.
            _starts.submit(self._confiner.release, work.result())


class ConfinedProcess:
    """A process that the spawn server has started."""

    def __init__(self, confiner: Confiner, prepared: Prepared, what: Program) -> None:
        """Start it with pipes for both outputs."""
        self._confiner = confiner
        self._prepared = prepared
        self._returncode: int | None = None
        self._ending = asyncio.Lock()
        self._child: SpawnedChild
        self._child, (_, self.stdout, self.stderr) = confiner.start_with_pipes(prepared, what)
        self.pid = self._child.pid

    def kill(self) -> None:
        """Kill the process group. May be called repeatedly, and after its end."""
        self._child.signal_group(signal.SIGKILL)

    async def wait(self) -> int:
        """Return the exit code after all processes of its group, and of its cgroup if it has one, have ended."""
        async with self._ending:
            if self._returncode is None:
                await self._ended()
                self.kill()
                # On a thread, because the spawn server and the helper may block.
                loop = asyncio.get_running_loop()
                self._returncode = await asyncio.shield(loop.run_in_executor(_starts, self._collected))
                await asyncio.shield(loop.run_in_executor(_starts, self._confiner.release, self._prepared))
        return self._returncode

    async def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        # The server reports the end; the pidfd covers a server that hangs.
        descriptors = (self._child.ended, self._child.pidfd)
        for descriptor in descriptors:
            loop.add_reader(descriptor, _note, ended)
        try:
            await ended
        finally:
            for descriptor in descriptors:
                loop.remove_reader(descriptor)

    def _collected(self) -> int:
        try:
            return self._child.collect()
        except SpawnFailed:
            return -signal.SIGKILL  # the server is gone, and the kernel has killed the processes it had started
        finally:
            self._child.close()

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self.stdout, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = -1


async def _over(work: asyncio.Future[ConfinedProcess]) -> None:
    """Wait for the end of a start, even if canceled again; the spawn server answers within a limited time."""
    while not work.done():
        with suppress(asyncio.CancelledError):
            await asyncio.wait([work])


def _note(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
