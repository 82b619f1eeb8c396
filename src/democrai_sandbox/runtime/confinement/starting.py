"""The starter with the kernel's help: workers and installations are held to the rules of their subject."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from democrai_sandbox.errors import SpawnFailed

from .confining import Program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from democrai_sandbox.kernel.spawn import SpawnedChild

    from .confining import Confiner, Prepared
    from .interface import Whose


class ConfinedStarter:
    """Starts processes of one subject by the spawn server. Who that is, and what it may, is asked at each start."""

    def __init__(self, confiner: Confiner, whose: Callable[[], Whose | None]) -> None:
        """``whose`` gives None for a program of the host's own."""
        self._confiner = confiner
        self._whose = whose

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], pass_fds: Sequence[int], cwd: str
    ) -> ConfinedProcess:
        """Start a program in a session of its own; it has these descriptors, and no standard input."""
        prepared = await self._prepared()
        # Not on a thread: whoever is cancelled closes the descriptors, whose numbers are soon another's.
        what = Program(argv[0], tuple(argv), env, cwd, pass_fds=tuple(pass_fds))
        return ConfinedProcess(self._confiner, prepared, what)

    async def _prepared(self) -> Prepared:
        """Have it prepared on a thread, because the helper may have to be waited for."""
        work = asyncio.ensure_future(asyncio.to_thread(self._confiner.prepare, self._whose()))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(self._give_back)
            raise

    def _give_back(self, work: asyncio.Future[Prepared]) -> None:
        if not work.cancelled() and work.exception() is None:
            self._confiner.release(work.result())


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
        """End the process group. May be called twice, and after its end."""
        self._child.signal_group(signal.SIGKILL)

    async def wait(self) -> int:
        """Return the exit code, when nothing of the process is left: of its group, and of its cgroup if it has one."""
        async with self._ending:
            if self._returncode is None:
                await self._ended()
                self.kill()
                self._returncode = self._collected()
                await asyncio.shield(asyncio.to_thread(self._confiner.release, self._prepared))
        return self._returncode

    async def _ended(self) -> None:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        descriptor = self._child.ended
        loop.add_reader(descriptor, _note, ended)
        try:
            await ended
        finally:
            loop.remove_reader(descriptor)

    def _collected(self) -> int:
        try:
            return self._child.collect()
        except SpawnFailed:
            return -signal.SIGKILL  # the server is gone, and the kernel has ended what it had started
        finally:
            self._child.close()

    def close(self) -> None:
        """Let the descriptors go."""
        for descriptor in (self.stdout, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = -1


def _note(ended: asyncio.Future[None]) -> None:
    if not ended.done():
        ended.set_result(None)
