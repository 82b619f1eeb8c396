"""Writes that checks cause: pending requests with a rate limit, used decisions and failed checks."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import ExternalAccessCheckFailed

from .values import AuditAction, new_id

if TYPE_CHECKING:
    from collections.abc import Callable

    from .node import AccessNode
    from .values import AccessTuple, NewRequest, Requester

_log = logging.getLogger("democrai_sandbox.access")
_FAILURES_KEPT = 100
_LONGEST = 1000


class DeferredRecords:
    """Records in memory until a chore of the node writes them, so that a check does not wait for the database."""

    def __init__(self, node: AccessNode) -> None:
        """Register the writers as chores of the node."""
        self._node = node
        self._uses: dict[str, int] = {}
        self._failures: deque[dict[str, Any]] = deque(maxlen=_FAILURES_KEPT)
        self._lock = threading.Lock()
        node.add_chore(self.write_uses)
        node.add_chore(self.write_failures)

    def used(self, decision_id: str, now: int) -> None:
        """Note that a decision answered a check, with the time in microseconds since the epoch."""
        self._uses[decision_id] = now

    def failed(self, subject: str, target: str, error: ExternalAccessCheckFailed) -> None:
        """Log a failed check and keep it for the audit log until it can be written."""
        cause = str(error.__cause__ or error)
        _log.error("external access could not be checked for %s: %s", subject, cause)
        error.is_logged = True
        with self._lock:
            self._failures.append({"subject": subject, "target": target[:_LONGEST], "error": cause[:_LONGEST]})

    def write_uses(self) -> None:
        """Store when decisions were last used."""
        if not self._uses:
            return
        uses, self._uses = self._uses, {}
        self._node.store.note_use({key: datetime.fromtimestamp(at / 1e6, UTC) for key, at in uses.items()})

    def write_failures(self) -> None:
        """Write the failures to the audit log; keep those that cannot be written yet."""
        with self._lock:
            waiting = list(self._failures)
            self._failures.clear()
        for index, what in enumerate(waiting):
            try:
                self._node.store.record(AuditAction.CHECK_FAILED, actor="system", now=self._node.clock(), after=what)
            except ExternalAccessCheckFailed:
                with self._lock:
                    self._failures.extendleft(reversed(waiting[index:]))
                raise


_Key = tuple[str, ...]
_WAIT_SECONDS = 5.0
_WRITTEN_AT_ONCE = 100
_LONGEST_KEPT = 512
"""Longest target that is kept in memory, because the subject chooses targets."""


@dataclass(frozen=True, slots=True)
class PendingLimits:
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
class _KnownRequest:
    """Request that this node has registered."""

    request_id: str
    written: float
    resumes: bool
    """Whether the request already has a resume action, as far as this node knows."""
    unwritten: int = 0
    doubted: bool = False
    """Whether decisions have changed since, so that the request may not be pending anymore."""


@dataclass(slots=True)
class _RequestAllowance:
    left: float
    at: float


class PendingRequests:
    """Register requests and count repeated ones."""

    def __init__(self, node: AccessNode, limits: PendingLimits) -> None:
        """Subscribe to changes of decisions, because an answered request can be filed again."""
        self._node = node
        self._limits = limits
        self._known: OrderedDict[_Key, _KnownRequest] = OrderedDict()
        self._orphans: list[_KnownRequest] = []
        self._allowances: OrderedDict[tuple[str, str], _RequestAllowance] = OrderedDict()
        self._flights: dict[_Key, threading.Event] = {}
        self._lock = threading.Lock()
        node.on_change(self._doubt)
        node.add_chore(self._write_counts)

    def register(self, access: AccessTuple, origin: Requester, make: Callable[[str], NewRequest]) -> str | None:
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
            flight.wait(_WAIT_SECONDS)  # another thread is registering the same request and counts it
        try:
            return self._add(key, access, origin, make)
        finally:
            with self._lock:
                del self._flights[key]
            mine.set()

    def _add(self, key: _Key, access: AccessTuple, origin: Requester, make: Callable[[str], NewRequest]) -> str | None:
        if not self._take_allowance((str(access.subject), origin.user_id)):
            return None
        request = make(new_id())
        registered = self._node.store.register(request, now=self._node.clock(), most_pending=self._limits.pending)
        if registered.full:
            return None
        if not registered.request_id:
            return ""
        known = _KnownRequest(registered.request_id, monotonic(), registered.created and bool(request.resume_action))
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

    def _attached(self, known: _KnownRequest, make: Callable[[str], NewRequest]) -> str:
        """Attach the resume action, if the caller supplies one and the request has none."""
        if not known.resumes:
            request = make(known.request_id)
            if request.resume_action:
                known.resumes = True
                self._node.store.attach_resume(request, now=self._node.clock())
        return known.request_id

    def _counted(self, key: _Key) -> _KnownRequest | None:
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

    def _counted_in_store(self, known: _KnownRequest, times: int) -> bool:
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
            allowance = self._allowances.setdefault(who, _RequestAllowance(most, now))
            self._allowances.move_to_end(who)
            while len(self._allowances) > self._limits.remembered:
                self._allowances.popitem(last=False)
            allowance.left = min(most, allowance.left + (now - allowance.at) * self._limits.refill_per_second)
            allowance.at = now
            if allowance.left < 1:
                return False
            allowance.left -= 1
            return True


def _key_of(access: AccessTuple, origin: Requester) -> _Key:
    target = access.target if len(access.target) <= _LONGEST_KEPT else access.digest
    about = (access.subject.kind, access.subject.name, access.resource_type, access.operation, target)
    return (*about, origin.user_id, origin.session_key, origin.organization_id)
