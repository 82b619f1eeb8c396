"""Holding on to the helper: noticing its end, waiting for its return, and letting it go in order."""

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
"""Seconds to wait for a helper that is being started again."""
_LOOK = 0.05
_HURRY_EVERY = 1.0
_PING_WITHIN = 2.0
_GONE_FIX = (
    "the rules in force stay as they are until then; restart the application, or have the helper run as a service, "
    "which starts it again"
)


class HelperHold:
    """The helper of this process while there is one. Used by one thread at a time, except for ``running``."""

    def __init__(self, client: HelperClient, starter: HelperStarter, flow: FlowLog) -> None:
        """Keep the parts; nothing is started."""
        self.running: RunningHelper | None = None
        self._client = client
        self._starter = starter
        self._flow = flow
        self._handle = -1
        """A descriptor of the helper's process, which tells of its end."""

    def start(self) -> None:
        """Start a helper, or find the one that runs."""
        self.running = self._starter.start(self._client)
        self._watch()
        self._flow("egress.helper", way=self.running.way, pid=self.running.pid)

    def watched(self) -> Iterable[int]:
        """Return descriptors that have something to read when the helper says something, or ends."""
        log = self.running.lines if self.running is not None else -1
        return [number for number in (log, self._handle) if number >= 0]

    def heard(self, ready: Iterable[int]) -> bool:
        """Hand on the helper's log; return whether it has just ended."""
        if self.running is not None:
            self.running.read_log()
        if self._handle < 0 or self._handle not in ready:
            return False
        self._unwatch()
        return True

    def revive(self, error: HelperFailed) -> None:
        """Return when a helper answers again; raises when none will, or not soon."""
        running = self.running
        if running is None:
            raise error
        if not running.is_kept:
            # What this process starts now is confined as it is, and in the cgroup that a helper empties by killing.
            raise HelperFailed(error.what, fix=_GONE_FIX, reason=NOT_RUNNING) from error
        running.pid = self._await(running, error)
        self._watch()
        self._flow("egress.helper_returned", pid=running.pid)

    def stop(self) -> None:
        """Have the rules removed and the helper ended. Without a helper they stay, closed, until one sweeps them."""
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
            if now - hurried > _HURRY_EVERY:  # it may have ended once more
                running.hurry()
                hurried = now
            sleep(_LOOK)

    def _watch(self) -> None:
        self._unwatch()
        if self.running is not None and self.running.pid:
            with suppress(OSError):  # it has ended already, or this kernel cannot: asking will tell
                self._handle = os.pidfd_open(self.running.pid)

    def _unwatch(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)
