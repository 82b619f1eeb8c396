"""Monitor the processes that the application needs: the spawn server, the helper and its keeper.

Another process restarts each of them. The monitoring thread logs and counts processes that end, stop or return,
continues stopped ones where the system permits it, and reports a process that cannot be restarted.
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

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.errors import KernelLayerError

from .spawn.standby import is_stopped

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
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SupervisedProcess:
    """State of one process at the last check."""

    pid: int = 0
    up: bool = True
    """Whether it answers."""
    restarts: int = 0
    """Number of restarts seen so far."""


class Supervisor:
    """Thread that monitors the processes of one kernel layer."""

    def __init__(self, spawn: SpawnServer | None, egress: EgressControl | None) -> None:
        self.lost = ""
        """Name of a process that ended and cannot be restarted. The application must be restarted."""
        self._spawn = spawn
        self._egress = egress
        self._parts: dict[str, SupervisedProcess] = {}
        self._missed = 0
        self._listeners: list[Callable[[], object]] = []
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = WorkerThread("kernel-supervision", self._run)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread. Safe to call twice."""
        self._ending.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def parts(self) -> dict[str, SupervisedProcess]:
        """Return the processes by name, in their last known state."""
        return dict(self._parts)

    def on_lost(self, listener: Callable[[], object]) -> None:
        """Call ``listener`` when a process ended and cannot be restarted, on the monitoring thread."""
        self._listeners.append(listener)

    def _run(self) -> None:
        while not self._ending.wait(_EVERY):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - monitoring must continue
                _log.exception("monitoring the kernel layer's processes failed; retrying")

    def look(self) -> None:
        """Check every process once."""
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
            _resume(SPAWN_SERVER, pid)
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
        _resume(KEEPER, egress.keeper_pid if kept else 0)
        if pid:
            self._missed = 0
            return
        _resume(HELPER, self._parts[HELPER].pid)
        self._missed = 0 if kept else self._missed + 1
        if self._missed >= _MISSED:  # a slow process is not lost
            self._lose(HELPER)

    def _found(self, name: str, pid: int) -> None:
        part = self._parts.setdefault(name, SupervisedProcess(pid))
        if pid and part.pid and pid != part.pid:
            part.restarts += 1
            _log.warning("the %s was restarted: process %d replaces %d", _WORDS[name], pid, part.pid)
        elif pid and not part.up:
            _log.info("the %s answers again", _WORDS[name])
        elif not pid and part.up:
            _log.error("the %s (process %d) does not answer", _WORDS[name], part.pid)
        part.up, part.pid = bool(pid), pid or part.pid

    def _lose(self, name: str) -> None:
        if self.lost or self._ending.is_set():
            return
        self.lost = name
        _log.critical("the %s ended and cannot be restarted: restart the application", _WORDS[name])
        for listener in self._listeners:
            listener()


_WORDS = MappingProxyType({SPAWN_SERVER: "spawn server", HELPER: "helper", KEEPER: "keeper of the helper"})


def _resume(name: str, pid: int) -> None:
    """Continue a stopped process, where this process may signal it."""
    if pid and is_stopped(pid):
        with suppress(OSError):  # owned by another user, or denied to a confined process
            os.kill(pid, signal.SIGCONT)
            _log.warning("the %s (process %d) was stopped; sent SIGCONT", _WORDS[name], pid)
