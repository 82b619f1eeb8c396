"""Node: one process among those that share a store. It keeps the snapshot current and announces changes."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from os import getpid
from time import monotonic, time_ns
from typing import TYPE_CHECKING, TypeVar

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.errors import ExternalAccessCheckFailed, StoreUnavailable

from .snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from .events.bus import Bus
    from .store import SqlStore

_log = logging.getLogger("democrai_sandbox.access")
_LONGEST_PAUSE = 2.0
"""Maximum pause between attempts to reach the store; short, so that a node recovers soon after an outage."""


def _microseconds() -> int:
    return time_ns() // 1000


def utc_now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Current state of a node."""

    node: str
    generation: int
    store_reachable: bool
    bus_connected: bool
    seconds_since_refresh: float


class AccessNode:
    """Snapshot of a node, kept current by events and by polling the store."""

    def __init__(
        self, store: SqlStore, bus: Bus, *, poll_seconds: float = 1.0, clock: Callable[[], datetime] = utc_now
    ) -> None:
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
        self._thread: WorkerThread | None = None
        self._listeners: list[Callable[[], None]] = []
        self._chores: list[Callable[[], None]] = []

    @property
    def snapshot(self) -> Snapshot:
        """Decisions that this node knows; never blocks."""
        snapshot = self._snapshot
        if snapshot is None or getpid() != self._process:
            # A forked process does not have the refresh thread, so it would never learn of a revocation.
            raise ExternalAccessCheckFailed
        return snapshot

    @property
    def status(self) -> NodeStatus:
        """Current state of the node."""
        generation = self._snapshot.generation if self._snapshot else 0
        since = monotonic() - self._refreshed
        return NodeStatus(self.bus.node, generation, self._reachable, self.bus.connected, since)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change of the snapshot, on the thread that noticed it."""
        self._listeners.append(listener)

    def add_chore(self, chore: Callable[[], None]) -> None:
        """Run ``chore`` about once per poll while the store can be reached."""
        self._chores.append(chore)

    def start(self) -> None:
        """Load the decisions, then follow changes. Raises if the store cannot be read."""
        self.store.check_schema()
        self.refresh()
        self._ending.clear()
        self._thread = WorkerThread("access-refresh", self._follow)
        self._thread.start()
        self.bus.start(self._heard)

    def stop(self) -> None:
        """Stop following changes. Checks still use the last snapshot. May be called twice."""
        self.bus.stop()
        self._ending.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def refresh(self) -> None:
        """Read the changes. If a restored backup lowered the generation, read everything again."""
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
        """Refresh this node after one of its acts and notify the others. The act is in force even if both fail."""
        try:
            self.refresh()
        except ExternalAccessCheckFailed:
            _log.warning("a decision was stored, but could not be read back yet", exc_info=True)
        self.bus.publish(self._snapshot.generation if self._snapshot else 0)

    def _heard(self, generation: int | None) -> None:
        """Wake the refresh thread if something may be new; the announced generation is only a hint."""
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
                self._tell_listeners()  # also during an outage, because results cached elsewhere have expired
            seen = now
            pause = self._poll if self._look() else min(max(pause, 0.1) * 2, _LONGEST_PAUSE)

    def _look(self) -> bool:
        try:
            self.refresh()
            for chore in self._chores:
                chore()
        except ExternalAccessCheckFailed as error:
            if self._reachable:
                _log.error("cannot reach the decision store: %s", error.__cause__ or error)
            self._reachable = False
            return False
        except Exception:  # noqa: BLE001 - the thread must continue
            _log.exception("refreshing the decisions failed; retrying")
            return False
        return True

    def _tell_listeners(self) -> None:
        for listener in self._listeners:
            try:
                listener()
            except Exception:  # noqa: BLE001 - one listener is not another's affair
                _log.exception("a listener failed after a change of decisions")


T = TypeVar("T")

_SECONDS = 2.0
"""Timeout of one query. The store's own timeout is longer, because other callers prefer waiting to failing."""
_MOST = 16
"""Maximum number of running queries, including abandoned ones, which end when the store times out."""
_places = threading.BoundedSemaphore(_MOST)


def ask_in_time(node: AccessNode, question: Callable[[], T]) -> T:
    """Return the result of a query or raise its error; raises ``StoreUnavailable`` after two seconds.

    While the node considers the store unreachable, nothing is asked; the node notices when the store is back.
    """
    if not node.status.store_reachable or not _places.acquire(timeout=_SECONDS):
        raise StoreUnavailable
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(question())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked
            future.set_exception(error)
        finally:
            _places.release()

    try:
        WorkerThread("store-probe", run).start()
    except BaseException:
        _places.release()
        raise
    if not wait([future], _SECONDS).done:
        raise StoreUnavailable from TimeoutError(f"the database did not answer within {_SECONDS:g} seconds")
    return future.result()
