"""Hold the connection to the helper: detect its end, wait for its return, and stop it."""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic, sleep
from typing import TYPE_CHECKING

from democrai_sandbox.errors import HelperFailed

from .client import NOT_RUNNING
from .elevation import Way
from .leftovers import remove_dead_socket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from democrai_sandbox.kernel.flow import FlowLog

    from .client import HelperClient
    from .starting import HelperStarter, RunningHelper

_RETURNING = 4.0
"""Seconds to wait for a helper that is restarting."""
_LOOK = 0.05
_HURRY_EVERY = 1.0
_PING_WITHIN = 2.0
_GONE_FIX = (
    "the current rules stay in force; restart the application, or run the helper as a service, which restarts it "
    "automatically"
)


class HelperHold:
    """The running helper of this process, if any. One thread at a time may use it, except for ``running``."""

    def __init__(self, client: HelperClient, starter: HelperStarter, flow: FlowLog) -> None:
        """Store the parts without starting anything."""
        self.running: RunningHelper | None = None
        self._client = client
        self._starter = starter
        self._flow = flow
        self._handle = -1
        """Process descriptor of the helper, readable when it ends."""

    def start(self) -> None:
        """Start a helper, or attach to a running one."""
        self.running = self._starter.start(self._client)
        self._watch()
        self._flow("egress.helper", way=self.running.way, pid=self.running.pid)

    def watched(self) -> Iterable[int]:
        """Return descriptors that become readable when the helper writes a log line or ends."""
        log = self.running.lines if self.running is not None else -1
        return [number for number in (log, self._handle) if number >= 0]

    def heard(self, ready: Iterable[int]) -> bool:
        """Forward the helper's log; return whether it has just ended."""
        if self.running is not None:
            self.running.read_log()
        if self._handle < 0 or self._handle not in ready:
            return False
        self._unwatch()
        return True

    def revive(self, error: HelperFailed) -> None:
        """Wait until a helper answers again; raise when none can be started in time."""
        running = self.running
        if running is None:
            raise error
        if not running.is_kept:
            # A process started now would be confined, and in the cgroup whose processes a new helper kills.
            raise HelperFailed(error.what, fix=_GONE_FIX, reason=NOT_RUNNING) from error
        running.pid = self._await(running, error)
        self._watch()
        self._flow("egress.helper_returned", pid=running.pid)

    def stop(self) -> None:
        """Remove the rules and stop the helper. If it has ended, the rules stay until the next helper removes them."""
        running, self.running = self.running, None
        self._unwatch()
        if running is None:
            return
        try:
            self._clear(running)
        except HelperFailed as error:
            self._flow("egress.clear_failed", error=str(error))
        finally:
            running.stop()
            remove_dead_socket(self._client.path)

    def _clear(self, running: RunningHelper) -> None:
        try:
            self._client.ping(timeout=_PING_WITHIN)
        except HelperFailed as error:
            if error.reason != NOT_RUNNING or not running.is_kept:
                raise
            self._await(running, error)
        running.let_go()
        if self._client.clear(leave=running.way is not Way.ATTACH):
            running.await_end()

    def _await(self, running: RunningHelper, error: HelperFailed) -> int:
        now = hurried = monotonic()
        deadline = now + _RETURNING
        running.hurry()
        while True:
            running.read_log()
            with suppress(HelperFailed):
                return self._client.ping(timeout=_PING_WITHIN)
            now = monotonic()
            if now > deadline or not running.is_kept:
                raise error
            if now - hurried > _HURRY_EVERY:  # it may have ended again
                running.hurry()
                hurried = now
            sleep(_LOOK)

    def _watch(self) -> None:
        self._unwatch()
        if self.running is not None and self.running.pid:
            with suppress(OSError):  # already ended, or pidfd is unsupported: requests will show it
                self._handle = os.pidfd_open(self.running.pid)

    def _unwatch(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
