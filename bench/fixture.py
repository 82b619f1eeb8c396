"""Fixture of a case in its worker: the files of the run and the guard of the mode."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from bench.discard_server import DiscardServer

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from bench.clients import Ask
    from bench.decisions import Database
    from bench.modes import Mode
    from bench.registry import Access
    from bench.workspace import Workspace


class Fixture:
    """Fixture of one worker."""

    def __init__(self, ground: Workspace, name: str, mode: Mode) -> None:
        self.ground = ground
        self.mode = name
        self.guarded = mode.guarded
        self.is_reference = getattr(mode, "is_reference", False)
        self._mode = mode
        self._compiled: dict[tuple[int, Access], AbstractContextManager[Any]] = {}
        self._root = [str(ground.work)]

    def guard(self, roots: int = 1, access: Access = ()) -> AbstractContextManager[Any]:
        """Return the guard with that many allowed roots: the same object each time, to measure only entering it."""
        key = (roots, access)
        if key not in self._compiled:
            self._compiled[key] = self.new_guard(roots, access)
        return self._compiled[key]

    def new_guard(self, roots: int = 1, access: Access = ()) -> AbstractContextManager[Any]:
        """Create a guard from its arguments."""
        return self._mode.guard(self._paths(roots), access)

    def run(self, function: Callable[..., Any], *args: object) -> Any:
        """Call the function under a guard that wraps it."""
        return self._mode.run(self._root, function, *args)

    def asker(self, database: Database, *, guarded: bool = False) -> Ask:
        """Return a function for access checks, from guarded code or as the host; without a service, a stand-in."""
        return self._mode.asker(self.ground, database, guarded=guarded)

    @cached_property
    def sink(self) -> DiscardServer:
        """Listener to connect to, created by the first case that needs it, before its guard."""
        return DiscardServer()

    def tidy(self) -> None:
        """Clean up after a measurement, outside the guard and the measured time."""
        if "sink" in self.__dict__:
            self.sink.empty()

    def _paths(self, roots: int) -> list[str]:
        if roots == 1:
            return self._root
        others = self.ground.base / "r"
        return self._root + [str(others / f"root{number}") for number in range(1, roots)]
