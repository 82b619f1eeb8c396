"""Deadlines of calls to workers: a late call is canceled and, if it continues, abandoned."""

from __future__ import annotations

import asyncio
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .flights import Flight


class Deadlines:
    """One timer for all pending calls, because a timer per call would cost more than the rest of a call."""

    def __init__(
        self,
        flights: Mapping[int, Flight],
        grace: float,
        overdue: Callable[[Flight], None],
        hangs: Callable[[Flight], None],
    ) -> None:
        """Watch these calls.

        Call ``overdue`` at the deadline and, a grace period later, ``hangs`` if the call still runs.
        """
        self._loop = asyncio.get_running_loop()
        self._flights = flights
        self._grace = grace
        self._tell_overdue = overdue
        self._tell_hangs = hangs
        self._timer: asyncio.TimerHandle | None = None
        self._next = inf

    def limit(self, flight: Flight, seconds: float) -> None:
        """Set the deadline of a call, ``seconds`` from now."""
        flight.seconds = seconds
        flight.deadline = self._loop.time() + seconds
        if flight.deadline < self._next:
            self._look_at(flight.deadline)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, time: float) -> None:
        self.close()
        self._next = time
        self._timer = self._loop.call_at(time, self._look)

    def _look(self) -> None:
        self._timer, self._next = None, inf
        now = self._loop.time()
        for flight in tuple(self._flights.values()):
            if flight.deadline <= now:
                self._handle(flight, now)
        earliest = min((flight.deadline for flight in self._flights.values()), default=inf)
        if earliest < inf:
            self._look_at(earliest)

    def _handle(self, flight: Flight, now: float) -> None:
        if flight.overdue:
            flight.deadline = inf
            self._tell_hangs(flight)
        else:
            flight.overdue = True
            flight.deadline = now + self._grace
            self._tell_overdue(flight)
