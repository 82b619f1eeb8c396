"""Registration of requests: one per access and origin, with a rate limit."""

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
"""Longest target that is kept in memory, because the subject chooses targets."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for the requests of a subject."""

    new_requests: int = 200
    """Maximum burst of new requests per subject and user."""
    refill_per_second: float = 1.0
    """New requests that become possible per second after a burst."""
    counting_seconds: float = 5.0
    """Interval at which the count of a repeated request is written."""
    pending: int = 1000
    """Maximum number of pending requests per subject and user, on all nodes together; 0 means no limit."""
    remembered: int = 10_000


@dataclass(slots=True)
class _Known:
    """Request that this node has registered."""

    request_id: str
    written: float
    resumes: bool
    """Whether the request already has a resume action, as far as this node knows."""
    unwritten: int = 0
    doubted: bool = False
    """Whether decisions have changed since, so that the request may not be pending anymore."""


@dataclass(slots=True)
class _Allowance:
    left: float
    at: float


class Registrar:
    """Register requests and count repeated ones."""

    def __init__(self, node: AccessNode, limits: Limits) -> None:
        """Subscribe to changes of decisions, because an answered request can be filed again."""
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
        """Return the id of the pending request, creating it if necessary; None if the subject exceeds its limits.

        Returns an empty text if the access was decided meanwhile and this node has not seen that yet. ``make`` builds
        the request for an id, because the resume context is sealed for that id. A pending request without a resume
        action gets it.
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
            flight.wait(_PATIENCE)  # another thread is registering the same request and counts it
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
        """Make the next caller check whether the request is still pending."""
        with self._lock:
            for known in self._known.values():
                known.doubted = True

    def _attached(self, known: _Known, make: Callable[[str], NewRequest]) -> str:
        """Attach the resume action, if the caller supplies one and the request has none."""
        if not known.resumes:
            request = make(known.request_id)
            if request.resume_action:
                known.resumes = True
                self._node.store.attach_resume(request, now=self._node.clock())
        return known.request_id

    def _counted(self, key: _Key) -> _Known | None:
        """Return the request and count it, if this node registered it recently."""
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
        """Write a count; keep one that cannot be written now."""
        try:
            return self._node.store.count_again(known.request_id, times, now=self._node.clock())
        except ExternalAccessCheckFailed:
            with self._lock:
                known.unwritten += times
            raise

    def _forget(self, key: _Key) -> None:
        """Remove a request from memory, but keep its unwritten count."""
        known = self._known.pop(key, None)
        if known is not None and known.unwritten:
            self._orphans.append(known)

    def _write_counts(self) -> None:
        """Write pending counts, so that the stored count is right even if the request is not repeated."""
        due = monotonic() - self._limits.counting_seconds
        with self._lock:
            waiting = [known for known in self._known.values() if known.unwritten and known.written < due]
            waiting = (self._orphans + waiting)[:_WRITTEN_AT_ONCE]  # the node refreshes decisions between batches
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
