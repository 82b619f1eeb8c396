"""Watching the processes that the application relies on: the spawn server, the helper and its keeper.

Each is started again by another process: the spawn server by its standby, the helper by its keeper or systemd, and the
keeper by a standby of its own. This thread says in the log when one is gone, stands still or is back, counts it, and
has those that stand still go on where the system lets it. The application is told of one that nothing is left to start
again.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import KernelLayerError

if TYPE_CHECKING:
    from collections.abc import Callable

    from .egress.control import EgressControl
    from .spawn.client import SpawnServer

SPAWN_SERVER = "spawn_server"
HELPER = "helper"
KEEPER = "keeper"
_EVERY = 1.0
_ANSWER_SECONDS = 1.0
_MISSED = 3
_STOPPED = frozenset({b"T", b"t"})
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Part:
    """One process, as it was found last."""

    pid: int = 0
    up: bool = True
    """Whether it answers."""
    restarts: int = 0
    """Times that another process was found in its place."""


class Supervisor:
    """Looks after the parts of one kernel layer, on a thread of its own."""

    def __init__(self, spawn: SpawnServer | None, egress: EgressControl | None) -> None:
        """Keep the parts; the thread begins with ``start``."""
        self.lost = ""
        """Which part is gone for good: the application has to be started anew to have it again."""
        self._spawn = spawn
        self._egress = egress
        self._parts: dict[str, Part] = {}
        self._missed = 0
        self._listeners: list[Callable[[], object]] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = _Watch(self._run)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. May be called twice."""
        self._ending.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def parts(self) -> dict[str, Part]:
        """Return the parts by name, as they were found last."""
        return dict(self._parts)

    def on_lost(self, listener: Callable[[], object]) -> None:
        """Have something called when a part is gone for good, on the thread that noticed it."""
        self._listeners.append(listener)

    def _run(self) -> None:
        while not self._ending.wait(_EVERY):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - the thread must live
                _log.exception("looking after the processes of the kernel layer failed; trying again")

    def look(self) -> None:
        """Look at every part once."""
        if self._spawn is not None:
            self._look_at_spawn(self._spawn)
        if self._egress is not None:
            self._look_at_helper(self._egress)

    def _look_at_spawn(self, server: SpawnServer) -> None:
        pids = [server.pid, server.standby]
        up = server.answers(_ANSWER_SECONDS)
        server.stalled = not up
        self._found(SPAWN_SERVER, server.pid if up else 0)
        if up:
            return
        for pid in pids:
            _go_on(SPAWN_SERVER, pid)
        if not server.alive:
            self._lose(SPAWN_SERVER)

    def _look_at_helper(self, egress: EgressControl) -> None:
        try:
            pid = egress.ping(_ANSWER_SECONDS)
        except KernelLayerError:
            pid = 0
        egress.stalled = pid == 0
        self._found(HELPER, pid)
        kept = egress.is_kept
        self._found(KEEPER, egress.keeper_pid if kept else 0)
        _go_on(KEEPER, egress.keeper_pid if kept else 0)
        if pid:
            self._missed = 0
            return
        _go_on(HELPER, self._parts[HELPER].pid)
        self._missed = 0 if kept else self._missed + 1
        if self._missed >= _MISSED:  # one that takes its time is not gone
            self._lose(HELPER)

    def _found(self, name: str, pid: int) -> None:
        """Note what was found, and tell of what is different from before."""
        part = self._parts.setdefault(name, Part(pid))
        if pid and part.pid and pid != part.pid:
            part.restarts += 1
            _log.warning("the %s was started again: process %d is in the place of %d", _WORDS[name], pid, part.pid)
        elif pid and not part.up:
            _log.info("the %s answers again", _WORDS[name])
        elif not pid and part.up:
            _log.error("the %s (process %d) does not answer", _WORDS[name], part.pid)
        part.up, part.pid = bool(pid), pid or part.pid

    def _lose(self, name: str) -> None:
        if self.lost or self._ending.is_set():
            return
        self.lost = name
        _log.critical("the %s is gone, and nothing is left to start it again: restart the application", _WORDS[name])
        for listener in self._listeners:
            listener()


_WORDS = MappingProxyType({SPAWN_SERVER: "spawn server", HELPER: "helper", KEEPER: "keeper of the helper"})


def _go_on(name: str, pid: int) -> None:
    """Have a process go on that stands still, where this process may signal it."""
    if pid and _stands_still(pid):
        with suppress(OSError):  # another user's, or closed to a confined process
            os.kill(pid, signal.SIGCONT)
            _log.warning("the %s (process %d) stood still, and was told to go on", _WORDS[name], pid)


def _stands_still(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - no object for one read
            return file.read().rpartition(b")")[2].split()[0] in _STOPPED
    except (OSError, IndexError):
        return False


class _Watch(threading.Thread):
    """A daemon thread that forgets its work when it begins it: every thread can be listed by guarded code."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="kernel-supervision", daemon=True)
        self._work: Callable[[], None] | None = work

    def run(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work()
