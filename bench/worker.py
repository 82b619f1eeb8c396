"""One interpreter in one mode: `run <turns> <case>` on standard input, one JSON object per line as the answer.

`start <turns> <case>` comes before, if all modes run the case at the same time.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from bench.cases import CASES
from bench.fixture import Fixture
from bench.modes import MODES
from bench.registry import UnavailableError
from bench.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from bench.registry import Case, Loop


class Worker:
    """Worker that prepares cases on first use, and measures them."""

    def __init__(self, bed: Fixture) -> None:
        self._bed = bed
        self._loops: dict[str, Loop] = {}
        self._guards: dict[str, AbstractContextManager[Any]] = {}

    def start(self, name: str) -> None:
        """Call the method ``start`` of the loop, if it has one, before all modes run the case at the same time."""
        start = getattr(self._loop(name), "start", None)
        if start is not None:
            with self._placed(CASES[name]):
                start()

    def _loop(self, name: str) -> Loop:
        if name not in self._loops:
            self._loops[name] = CASES[name].prepare(self._bed)
        return self._loops[name]

    def measure(self, name: str, turns: int) -> int:
        """Return the nanoseconds of that many turns of a case, in the best part."""
        case, loop = CASES[name], self._loop(name)
        gc.collect()
        try:
            with self._placed(case):
                return self._guarded(case, loop, turns) if case.wrapped else _best(case, loop, turns)
        finally:
            self._bed.tidy()

    @contextmanager
    def _placed(self, case: Case) -> Iterator[None]:
        """Move to the server's processor for a case that needs it, and back."""
        anywhere = os.sched_getaffinity(0)
        if case.beside:
            os.sched_setaffinity(0, {self._bed.ground.server_cpu})
        try:
            yield
        finally:
            os.sched_setaffinity(0, anywhere)

    def _guarded(self, case: Case, loop: Loop, turns: int) -> int:
        if case.name not in self._guards:
            self._guards[case.name] = self._bed.guard(case.roots, case.access(self._bed))
        with self._guards[case.name]:
            return _best(case, loop, turns)


def _best(case: Case, loop: Loop, turns: int) -> int:
    return min(loop(turns) for _ in range(case.parts))


def main() -> None:
    """Serve until standard input ends."""
    answers = _private_output()
    mode_name, base = sys.argv[1:]
    try:
        worker = Worker(Fixture(Workspace(Path(base)), mode_name, MODES[mode_name]()))
    except Exception as error:
        _answer(answers, error=f"{type(error).__name__}: {error}")
        return
    # Existing objects are never garbage; frozen, they do not slow down the collection before each measurement.
    gc.disable()
    gc.collect()
    gc.freeze()
    _answer(answers, python=".".join(map(str, sys.version_info[:3])))
    for line in sys.stdin:
        verb, turns, name = line.rstrip("\n").split(" ", 2)
        try:
            if verb == "start":
                worker.start(name)
                _answer(answers, ns=0)
            else:
                _answer(answers, ns=worker.measure(name, int(turns)))
        except UnavailableError as error:
            _answer(answers, error=str(error))
        except Exception as error:
            _answer(answers, error=f"{type(error).__name__}: {error}")


def _private_output() -> IO[str]:
    """Separate the answers from printed output."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def _answer(answers: IO[str], **fields: object) -> None:
    answers.write(json.dumps(fields) + "\n")


if __name__ == "__main__":
    main()
