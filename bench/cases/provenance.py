"""Cost for the host's own work, at some depth of calls, while code of extensions is loaded.

Nothing is guarded here. Idle, no extension is loaded; in the guarded column the code of a subject is loaded, and each
operation checks the frames of its call stack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.cases.files import open_loop, stat_loop
from bench.registry import SHORT_PARTS, case

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

DEPTHS = (1, 10, 30, 60)
STAT_LIMITS = {30: 1.15}
OPEN_LIMITS = {30: 1.15}
"""More than half of it is the cost of an audit hook, as with any active guard in the process."""


def _load() -> dict[str, Any]:
    """Load functions like a runtime, under their subject's guard."""
    from democrai_sandbox.guard import own_code

    space: dict[str, Any] = {}
    code = compile("".join(f"def function_{number}(): pass\n" for number in range(100)), "<extension>", "exec")
    own_code(code)
    exec(code, space)
    return space


def _levels(depth: int) -> Callable[[Loop, int], int]:
    """Return a function that calls a loop that many frames deeper, each with different code."""
    lines = [f"def level_{at}(loop, turns): return level_{at - 1}(loop, turns)\n" for at in range(1, depth)]
    space: dict[str, Any] = {}
    exec("def level_0(loop, turns): return loop(turns)\n" + "".join(lines), space)
    found: Callable[[Loop, int], int] = space[f"level_{depth - 1}"]
    return found


def _at_depth(bed: Fixture, loop: Loop, depth: int) -> Loop:
    descend = _levels(depth)

    def measured(turns: int) -> int:
        # For this row only: loaded code of a subject affects the whole process.
        loaded = bed.run(_load) if bed.guarded else {}
        spent = descend(loop, turns)
        loaded.clear()
        return spent

    return measured


def _add(depth: int) -> None:
    def stat(bed: Fixture) -> Loop:
        return _at_depth(bed, stat_loop(str(bed.ground.file)), depth)

    def opened(bed: Fixture) -> Loop:
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
