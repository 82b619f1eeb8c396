"""What the host's own work pays, at some depth of calls, where code of extensions is loaded.

Nobody is guarded here. Idle, nothing is loaded; in the column of the guarded caller a subject's code is there, and each
operation looks through the frames that led to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.cases.files import open_loop, stat_loop
from bench.registry import SHORT_PARTS, case

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.bed import Bed
    from bench.registry import Loop

DEPTHS = (1, 10, 30, 60)
STAT_LIMITS = {30: 1.15}
OPEN_LIMITS = {30: 1.15}
"""More than half of it is the price of an audit hook at all, as with any guard that is alive in the process."""


def _load() -> dict[str, Any]:
    """Load functions as a runtime does, under their subject's guard."""
    from democrai_sandbox.guard import own_code

    space: dict[str, Any] = {}
    code = compile("".join(f"def function_{number}(): pass\n" for number in range(100)), "<extension>", "exec")
    own_code(code)
    exec(code, space)
    return space


def _levels(depth: int) -> Callable[[Loop, int], int]:
    """Return a function that calls a loop from that many frames further down, each of code of its own."""
    lines = [f"def level_{at}(loop, turns): return level_{at - 1}(loop, turns)\n" for at in range(1, depth)]
    space: dict[str, Any] = {}
    exec("def level_0(loop, turns): return loop(turns)\n" + "".join(lines), space)
    found: Callable[[Loop, int], int] = space[f"level_{depth - 1}"]
    return found


def _at_depth(bed: Bed, loop: Loop, depth: int) -> Loop:
    descend = _levels(depth)

    def measured(turns: int) -> int:
        # for this row only: the code of a subject is felt in the whole process as long as it is there
        loaded = bed.run(_load) if bed.guarded else {}
        spent = descend(loop, turns)
        loaded.clear()
        return spent

    return measured


def _add(depth: int) -> None:
    def stat(bed: Bed) -> Loop:
        return _at_depth(bed, stat_loop(str(bed.ground.file)), depth)

    def opened(bed: Bed) -> Loop:
        return _at_depth(bed, open_loop(str(bed.ground.file)), depth)

    for name, prepare, limits in (("os.stat", stat, STAT_LIMITS), ("open+close", opened, OPEN_LIMITS)):
        register = case(
            f"extensions loaded: {name}, {depth} frames deep",
            limit=limits.get(depth),
            wrapped=False,
            reference=False,
            parts=SHORT_PARTS,
        )
        register(prepare)


for _depth in DEPTHS:
    _add(_depth)
