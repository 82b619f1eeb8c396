"""One interpreter in one mode: `run <turns> <case>` on standard input, one JSON object per line as the answer."""

from __future__ import annotations

import gc
import json
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bench.bed import Bed
from bench.cases import CASES
from bench.ground import Ground
from bench.modes import MODES

if TYPE_CHECKING:
    from bench.registry import Case, Loop

PARTS = 4
"""A sample is the best of so many equal parts: what the scheduler takes for others falls into some of them only."""


class Worker:
    """Prepares cases when they are first asked for, and measures them."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self._loops: dict[str, Loop] = {}

    def measure(self, name: str, turns: int) -> int:
        """Answer the nanoseconds of that many turns of a case, in the best part."""
        case = CASES[name]
        if name not in self._loops:
            self._loops[name] = case.prepare(self._bed)
        loop = self._loops[name]
        gc.collect()
        return self._guarded(case, loop, turns) if case.wrapped else _best(loop, turns)

    def _guarded(self, case: Case, loop: Loop, turns: int) -> int:
        with self._bed.guard(case.roots):
            return _best(loop, turns)


def _best(loop: Loop, turns: int) -> int:
    return min(loop(turns) for _ in range(PARTS))


def main() -> None:
    """Serve until standard input ends."""
    answers = _private_output()
    mode_name, base = sys.argv[1:]
    try:
        worker = Worker(Bed(Ground(Path(base)), MODES[mode_name]()))
    except Exception as error:
        _answer(answers, error=f"{type(error).__name__}: {error}")
        return
    # What exists by now is never garbage; frozen, it costs the collection before each measurement nothing.
    gc.disable()
    gc.collect()
    gc.freeze()
    _answer(answers, python=".".join(map(str, sys.version_info[:3])))
    for line in sys.stdin:
        _, turns, name = line.rstrip("\n").split(" ", 2)
        try:
            _answer(answers, ns=worker.measure(name, int(turns)))
        except Exception as error:
            _answer(answers, error=f"{type(error).__name__}: {error}")


def _private_output() -> IO[str]:
    """Keep the answers apart from what anybody may print."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def _answer(answers: IO[str], **fields: object) -> None:
    answers.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()
