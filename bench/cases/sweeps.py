"""Series that must stay flat: the number of allowed roots, and the depth of the path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.cases.files import open_loop, stat_loop
from bench.registry import Case, Sweep, add

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

ROOTS = (1, 10, 100, 1_000, 10_000)
DEPTHS = (4, 6, 9, 12, 15)
FLAT = 1.15
"""Maximum ratio of the most expensive point of a series to the cheapest."""


def _at_file(loop: Callable[[str], Loop]) -> Callable[[Fixture], Loop]:
    return lambda bed: loop(str(bed.ground.file))


def _at_depth(loop: Callable[[str], Loop], depth: int) -> Callable[[Fixture], Loop]:
    return lambda bed: loop(str(bed.ground.deep(depth)))


def _register(title: str, loop: Callable[[str], Loop]) -> None:
    for roots in ROOTS:
        place = Sweep(f"{title} by roots", roots)
        add(Case(f"{title}, {roots} roots", _at_file(loop), roots=roots, sweep=place))
    for depth in DEPTHS:
        place = Sweep(f"{title} by depth", depth)
        add(Case(f"{title}, depth {depth}", _at_depth(loop, depth), sweep=place))


_register("os.stat", stat_loop)
_register("open+close", open_loop)
