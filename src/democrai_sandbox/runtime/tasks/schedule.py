"""Periodic tasks: each run is claimed by one node."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from democrai_sandbox.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

_log = logging.getLogger(__name__)
_LONGEST_SLEEP = 60.0
_PAUSE = 1.0


@dataclass(eq=False, slots=True)
class Entry:
    """A task with its period."""

    module: str
    name: str
    every: timedelta
    due: datetime | None = None
    """None until it was read from the store."""


class Schedule:
    """Sleeps until the next entry is due, and runs it. ``run`` is a task of the loop."""

    def __init__(
        self,
        clock: Callable[[], datetime],
        ensure: Callable[[Entry], Awaitable[datetime]],
        claim: Callable[[Entry], Awaitable[datetime]],
    ) -> None:
        """Take ``ensure``, which stores an entry, and ``claim``, which tries to get its run.

        Both return the next due time.
        """
        self._clock = clock
        self._ensure = ensure
        self._claim = claim
        self._entries: dict[tuple[str, str], Entry] = {}
        self._changed = asyncio.Event()

    def add(self, entry: Entry) -> None:
        """Add an entry; replace one of the same task."""
        self._entries[entry.module, entry.name] = entry
        self._changed.set()

    def remove(self, module: str) -> None:
        """Remove all entries of a module."""
        for key in [key for key in self._entries if key[0] == module]:
            del self._entries[key]

    async def run(self) -> None:
        """Run until canceled."""
        while True:
            pause = await self._step()
            self._changed.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause)

    async def _step(self) -> float:
        """Run due entries; return the seconds until the next one."""
        for entry in tuple(self._entries.values()):
            try:
                if entry.due is None:
                    entry.due = await self._ensure(entry)
                elif entry.due <= self._clock():
                    entry.due = await self._claim(entry)
            except StoreUnavailable:
                return _PAUSE
            except Exception:  # noqa: BLE001 - one failing entry must not stop the others
                _log.exception("the schedule of %s.%s failed", entry.module, entry.name)
                entry.due = self._clock() + timedelta(seconds=_PAUSE)
        times = [entry.due for entry in self._entries.values() if entry.due is not None]
        if not times:
            return _LONGEST_SLEEP
        left = (min(times) - self._clock()).total_seconds()
        return min(max(left, 0.001), _LONGEST_SLEEP)
