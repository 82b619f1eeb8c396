"""Putting requests down: once per tuple and origin, not more often than a person could read them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .node import AccessNode
    from .values import AccessTuple, NewRequest, Origin

_Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a subject may ask."""

    new_requests: int = 200
    """That one subject may put down for one user in one go..."""
    refill_per_second: float = 1.0
    """...and how many more become possible with each second."""
    counting_seconds: float = 5.0
    """How often a repeated question is written down: those in between are added up."""
    remembered: int = 10_000


@dataclass(slots=True)
class _Known:
    """A request that was put down here before."""

    request_id: str
    written: float
    unwritten: int = 0


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
        self._allowances: OrderedDict[tuple[str, str], _Allowance] = OrderedDict()
        self._lock = threading.Lock()
        node.on_change(self._doubt)
        node.add_chore(self._write_counts)

    def register(self, access: AccessTuple, origin: Origin, make: Callable[[], NewRequest]) -> str | None:
        """Return the id of the pending request, a new one if need be; None when the subject asks too much.

        The empty text comes back when it was decided meanwhile, which this node has not seen yet.
        """
        subject = access.subject
        key = (subject.kind, subject.name, access.operation, access.target, origin.user_id, origin.session_key)
        if known := self._counted(key):
            return known
        if not self._take_allowance((str(access.subject), origin.user_id)):
            return None
        registered = self._node.store.register(make(), now=self._node.clock())
        if not registered.request_id:
            return ""
        with self._lock:
            self._known[key] = _Known(registered.request_id, monotonic())
            self._known.move_to_end(key)
            while len(self._known) > self._limits.remembered:
                self._known.popitem(last=False)
        return registered.request_id

    def _doubt(self) -> None:
        """Have the next one who asks find out whether the request is pending still."""
        with self._lock:
            for known in self._known.values():
                known.written = -inf

    def _counted(self, key: _Key) -> str | None:
        """Return the request if it was put down here lately; it is counted there."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return None
            known.unwritten += 1
            if monotonic() - known.written < self._limits.counting_seconds:
                return known.request_id
            times, known.unwritten, known.written = known.unwritten, 0, monotonic()
        if self._node.store.count_again(known.request_id, times, now=self._node.clock()):
            return known.request_id
        with self._lock:
            self._known.pop(key, None)
        return None

    def _write_counts(self) -> None:
        """Write down what was asked again since, so that the count is right when nobody asks any more."""
        due = monotonic() - self._limits.counting_seconds
        with self._lock:
            waiting = [known for known in self._known.values() if known.unwritten and known.written < due]
            counts = [(known.request_id, known.unwritten) for known in waiting]
            for known in waiting:
                known.unwritten, known.written = 0, monotonic()
        for request_id, times in counts:
            self._node.store.count_again(request_id, times, now=self._node.clock())

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
