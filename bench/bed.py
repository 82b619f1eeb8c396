"""What a case finds in its worker: the files of the run and the guard of the mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from bench.ground import Ground
    from bench.modes import Mode


class Bed:
    """The test bed of one worker."""

    def __init__(self, ground: Ground, mode: Mode) -> None:
        self.ground = ground
        self.guarded = mode.guarded
        self._mode = mode
        self._compiled: dict[int, AbstractContextManager[Any]] = {}
        self._root = [str(ground.work)]

    def guard(self, roots: int = 1) -> AbstractContextManager[Any]:
        """Give the guard with that many allowed roots: the same object each time, so only entering it costs."""
        if roots not in self._compiled:
            self._compiled[roots] = self.new_guard(roots)
        return self._compiled[roots]

    def new_guard(self, roots: int = 1) -> AbstractContextManager[Any]:
        """Make a guard from its arguments."""
        return self._mode.guard(self._paths(roots))

    def run(self, function: Callable[..., Any], *args: object) -> Any:
        """Call the function under a guard that wraps it."""
        return self._mode.run(self._root, function, *args)

    def _paths(self, roots: int) -> list[str]:
        if roots == 1:
            return self._root
        others = self.ground.base / "r"
        return self._root + [str(others / f"root{number}") for number in range(1, roots)]
