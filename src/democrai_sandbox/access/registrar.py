"""Putting requests down: once per tuple and origin, not more often than a person could read them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING

from democrai_sandbox.errors import ExternalAccessCheckFailed

from .ids import new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from .node import AccessNode
    from .values import AccessTuple, NewRequest, Origin

_Key = tuple[str, ...]
_PATIENCE = 5.0
_WRITTEN_AT_ONCE = 100
_LONGEST_KEPT = 512
"""Of targets in memory: a subject chooses them."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a subject may ask."""

    new_requests: int = 200
    """That one subject may put down for one user in one go..."""
    refill_per_second: float = 1.0
    """...and how many more become possible with each second."""
    counting_seconds: float = 5.0
    """How often a repeated question is written down: those in between are added up."""
    pending: int = 1000
    """That may wait for one subject and user at the same time, on all nodes together; 0 for any number."""
    remembered: int = 10_000


@dataclass(slots=True)
class _Known:
    """A request that was put down here before."""

    request_id: str
    written: float
    resumes: bool
    """Whether it has something to go on with already, as far as is known here."""
    unwritten: int = 0
    doubted: bool = False
    """Decisions have changed since: it may not be pending any more."""


@dataclass(slots=True)
class _Allowance:
    left: float
    at: float


class Registrar:
    """Registers what is asked for, and counts what is asked again."""

    def __init__(self, node: AccessNode, limits: Limits) -> None:
        """Look again whenever decisions change: a request may have been answered, and be asked for anew."""
        self._node = node
        self._limits = limits
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._orphans: list[_Known] = []
        self._allowances: OrderedDict[tuple[str, str], _Allowance] = OrderedDict()
        self._flights: dict[_Key, threading.Event] = {}
        self._lock = threading.Lock()
        node.on_change(self._doubt)
        node.add_chore(self._write_counts)

    def register(self, access: AccessTuple, origin: Origin, make: Callable[[str], NewRequest]) -> str | None:
        """Return the id of the pending request, a new one if need be; None when the subject asks too much.

        The empty text comes back when it was decided meanwhile, which this node has not seen yet. ``make`` makes the
        request for an id: what to go on with is sealed for that id, and given to a request that had nothing of it.
        """
        key, mine = _key_of(access, origin), threading.Event()
        while True:
            if known := self._counted(key):
                return self._attached(known, make)
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    self._flights[key] = mine
                    break
            flight.wait(_PATIENCE)  # another thread is putting down the same: it is counted there
        try:
            return self._put_down(key, access, origin, make)
        finally:
            with self._lock:
                del self._flights[key]
            mine.set()

    def _put_down(
        self, key: _Key, access: AccessTuple, origin: Origin, make: Callable[[str], NewRequest]
    ) -> str | None:
        if not self._take_allowance((str(access.subject), origin.user_id)):
            return None
        request = make(new_id())
        registered = self._node.store.register(request, now=self._node.clock(), most_pending=self._limits.pending)
        if registered.full:
            return None
        if not registered.request_id:
            return ""
        known = _Known(registered.request_id, monotonic(), registered.created and bool(request.resume_action))
        with self._lock:
            self._forget(key)
            self._known[key] = known
            while len(self._known) > self._limits.remembered:
                self._forget(next(iter(self._known)))
        return self._attached(known, make)

    def _doubt(self) -> None:
        """Have the next one who asks find out whether the request is pending still."""
        with self._lock:
            for known in self._known.values():
                known.doubted = True

    def _attached(self, known: _Known, make: Callable[[str], NewRequest]) -> str:
        """Give the request what to go on with, if it comes with something and the request has nothing yet."""
        if not known.resumes:
            request = make(known.request_id)
            if request.resume_action:
                known.resumes = True
                self._node.store.attach_resume(request, now=self._node.clock())
        return known.request_id

    def _counted(self, key: _Key) -> _Known | None:
        """Return the request if it was put down here lately; it is counted there."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return None
            known.unwritten += 1
            if not known.doubted and monotonic() - known.written < self._limits.counting_seconds:
                return known
            known.doubted = False
            times, known.unwritten, known.written = known.unwritten, 0, monotonic()
        if self._counted_in_store(known, times):
            return known
        with self._lock:
            self._known.pop(key, None)
        return None

    def _counted_in_store(self, known: _Known, times: int) -> bool:
        """Write a count; one that cannot be written now is kept."""
        try:
            return self._node.store.count_again(known.request_id, times, now=self._node.clock())
        except ExternalAccessCheckFailed:
            with self._lock:
                known.unwritten += times
            raise

    def _forget(self, key: _Key) -> None:
        """Leave a request out of memory, but not what was not written about it yet."""
        known = self._known.pop(key, None)
        if known is not None and known.unwritten:
            self._orphans.append(known)

    def _write_counts(self) -> None:
        """Write down what was asked again since, so that the count is right when nobody asks any more."""
        due = monotonic() - self._limits.counting_seconds
        with self._lock:
            waiting = [known for known in self._known.values() if known.unwritten and known.written < due]
            waiting = (self._orphans + waiting)[:_WRITTEN_AT_ONCE]  # in between the node looks for decisions
        for known in waiting:
            with self._lock:
                times, known.unwritten, known.written = known.unwritten, 0, monotonic()
            if times:
                self._counted_in_store(known, times)
        with self._lock:
            self._orphans = [known for known in self._orphans if known.unwritten]

    def _take_allowance(self, who: tuple[str, str]) -> bool:
        now, most = monotonic(), float(self._limits.new_requests)
        with self._lock:
            allowance = self._allowances.setdefault(who, _Allowance(most, now))
            self._allowances.move_to_end(who)
            while len(self._allowances) > self._limits.remembered:
                self._allowances.popitem(last=False)
            allowance.left = min(most, allowance.left + (now - allowance.at) * self._limits.refill_per_second)
            allowance.at = now
            if allowance.left < 1:
                return False
            allowance.left -= 1
            return True


def _key_of(access: AccessTuple, origin: Origin) -> _Key:
    who = (access.subject.kind, access.subject.name)
    target = access.target if len(access.target) <= _LONGEST_KEPT else access.digest
    return (
        *who,
        access.resource_type,
        access.operation,
        target,
        origin.user_id,
        origin.session_key,
        origin.organization_id,
    )
