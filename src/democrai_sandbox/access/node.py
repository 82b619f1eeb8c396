"""One process among those that share a store: it keeps a snapshot, looks when others tell of a change, and tells."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from os import getpid
from time import monotonic, time_ns
from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExternalAccessCheckFailed

from .snapshot import Snapshot
from .threads import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from .interface import Bus, Store

_log = logging.getLogger("democrai_sandbox.access")
_LONGEST_PAUSE = 2.0
"""Between attempts to reach a store that is away: short, so that a node converges soon after it is back."""


def _microseconds() -> int:
    return time_ns() // 1000


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """What a node knows about itself now."""

    node: str
    generation: int
    store_reachable: bool
    bus_connected: bool
    seconds_since_refresh: float


class AccessNode:
    """Holds the snapshot and keeps it current: by events, and by asking the store once in a while all the same."""

    def __init__(
        self, store: Store, bus: Bus, *, poll_seconds: float = 1.0, clock: Callable[[], datetime] = utc_now
    ) -> None:
        """Keep the parts; nothing is read before ``start`` or ``refresh``."""
        self.store = store
        self.bus = bus
        self.clock = clock
        self._poll = poll_seconds
        self._snapshot: Snapshot | None = None
        self._process = getpid()
        self._refreshed = monotonic()
        self._reachable = False
        self._refreshing = threading.Lock()
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._thread: Worker | None = None
        self._listeners: list[Callable[[], None]] = []
        self._chores: list[Callable[[], None]] = []

    @property
    def snapshot(self) -> Snapshot:
        """The decisions as far as they are known here; never waits for anything."""
        snapshot = self._snapshot
        if snapshot is None or getpid() != self._process:
            # A forked process has no thread that follows: it would never hear of a revocation.
            raise ExternalAccessCheckFailed
        return snapshot

    @property
    def status(self) -> NodeStatus:
        """What is true now."""
        generation = self._snapshot.generation if self._snapshot else 0
        since = monotonic() - self._refreshed
        return NodeStatus(self.bus.node, generation, self._reachable, self.bus.connected, since)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have something called after each change of the snapshot, on whichever thread noticed it."""
        self._listeners.append(listener)

    def add_chore(self, chore: Callable[[], None]) -> None:
        """Have something done about once per poll, while the store can be reached."""
        self._chores.append(chore)

    def start(self) -> None:
        """Load the decisions, then follow changes. Raises when the store cannot be read: nothing is known then."""
        self.store.check_schema()
        self.refresh()
        self._ending.clear()
        self._thread = Worker("access-refresh", self._follow)
        self._thread.start()
        self.bus.start(self._heard)

    def stop(self) -> None:
        """Stop following; what is known goes on to be answered. May be called twice."""
        self.bus.stop()
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def refresh(self) -> None:
        """Read what changed. A store that was set back, by a restored backup, is read from the beginning."""
        with self._refreshing:
            before = self._snapshot
            current = before or Snapshot()
            generation = self.store.generation()
            if before is None or generation != before.generation:
                if generation < current.generation:
                    current = Snapshot()
                self._snapshot = current.changed(self.store.changes(current.generation))
            self._refreshed = monotonic()
            self._reachable = True
        if self._snapshot is not before:
            self._tell_listeners()

    def announce(self) -> None:
        """After an act of this node: see it here, then tell the others. Its effect does not depend on either."""
        try:
            self.refresh()
        except ExternalAccessCheckFailed:
            _log.warning("a decision was stored, but could not be read back yet", exc_info=True)
        self.bus.publish(self._snapshot.generation if self._snapshot else 0)

    def _heard(self, generation: int | None) -> None:
        """Look, if there may be something new. What was told is not believed: the store is read."""
        snapshot = self._snapshot
        if generation is None or snapshot is None or generation > snapshot.generation:
            self._wake.set()

    def _follow(self) -> None:
        pause, seen = self._poll, _microseconds()
        while not self._ending.is_set():
            expiry = self._snapshot.next_expiry(seen) if self._snapshot else None
            until = pause if expiry is None else min(pause, max(0.0, (expiry - _microseconds()) / 1e6))
            self._wake.wait(until)
            self._wake.clear()
            now = _microseconds()
            if expiry is not None and expiry <= now:
                self._tell_listeners()  # also while the store is away: answers that were kept elsewhere are over
            seen = now
            pause = self._poll if self._look() else min(max(pause, 0.1) * 2, _LONGEST_PAUSE)

    def _look(self) -> bool:
        try:
            self.refresh()
            for chore in self._chores:
                chore()
        except ExternalAccessCheckFailed as error:
            if self._reachable:
                _log.error("the store of decisions cannot be reached: %s", error.__cause__ or error)
            self._reachable = False
            return False
        except Exception:  # noqa: BLE001 - whatever it is, this thread goes on
            _log.exception("keeping the decisions current failed; trying again")
            return False
        return True

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 - one listener is not another's affair
                _log.exception("a listener failed after a change of decisions")
