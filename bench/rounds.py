"""Measurement: many short rounds, in each of which the modes take turns in random order, or run at the same time."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from bench.workers import REFERENCE_MODES, SERVICE_MODE, WorkerError, WorkerProcess, running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from bench.registry import Case
    from bench.workspace import Workspace

T = TypeVar("T")

SWEEP_MODES = ("plain", "guarded", SERVICE_MODE)
FIRST_GUESS_NS = 500_000
"""Minimum duration of a trial that determines the turns per part of a sample."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Amount of measurements."""

    generations: int
    """Sets of new processes: the memory layout makes a process faster or slower for its whole life."""
    rounds: int
    """Rounds of each case in each generation."""
    sample_ns: int
    """Approximate duration of one sample, all parts together."""


FULL = Settings(generations=12, rounds=5, sample_ns=12_000_000)
QUICK = Settings(generations=3, rounds=3, sample_ns=6_000_000)


@dataclass(slots=True)
class Measured:
    """Results of a run."""

    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    """By case, one entry per round: nanoseconds of one operation by mode."""
    failures: dict[tuple[str, str], str] = field(default_factory=dict)
    """By case and mode, the reason of a missing time."""
    absent: dict[str, str] = field(default_factory=dict)
    """By mode, the reason why it did not run."""
    versions: dict[str, str] = field(default_factory=dict)
    """By mode, the version of its interpreter."""


class Campaign:
    """One run over all cases."""

    def __init__(
        self, cases: list[Case], settings: Settings, report: Callable[[str], None], measured: Measured
    ) -> None:
        self._cases = cases
        self._settings = settings
        self._report = report
        self._turns: dict[tuple[str, str], int] = {}
        self._random = random.Random()
        self.measured = measured
        measured.rounds.update({case.name: [] for case in cases})

    def run(self, pythons: Mapping[str, Path], ground: Workspace) -> None:
        """Measure in as many generations of workers as configured."""
        for generation in range(1, self._settings.generations + 1):
            with running(pythons, ground) as started:
                self.measured.absent.update(started.failures)
                self.measured.versions.update({mode: worker.python for mode, worker in started.workers.items()})
                cases = [case for case in self._cases if case.samples is None or generation <= case.samples]
                for number, case in enumerate(self._shuffled(cases), 1):
                    self._report(f"{generation}/{self._settings.generations}: {number}/{len(cases)} {case.name}")
                    self._measure(case, list(started.workers.values()))

    def _measure(self, case: Case, workers: list[WorkerProcess]) -> None:
        able = [worker for worker in workers if _is_wanted(case, worker.mode) and self._warm_up(case, worker)]
        for _ in range(self._rounds(case)):
            workers = self._shuffled(able)
            if case.together:
                times = self._sample(case, [worker for worker in workers if self._started(case, worker)])
            else:
                times = {mode: time for worker in workers for mode, time in self._sample(case, [worker]).items()}
            self.measured.rounds[case.name].append(times)

    def _rounds(self, case: Case) -> int:
        """Return the rounds of a case in one generation."""
        return self._settings.rounds if case.samples is None else max(1, case.samples // FULL.generations)

    def _warm_up(self, case: Case, worker: WorkerProcess) -> bool:
        """Prepare the case in the worker, and determine the turns per part of a sample."""
        key = (case.name, worker.column)
        try:
            if key not in self._turns:
                self._turns[key] = self._calibrated(case, worker)
            worker.measure(case.name, self._turns[key])
        except WorkerError as error:
            self.measured.failures[key] = str(error)
            return False
        return True

    def _calibrated(self, case: Case, worker: WorkerProcess) -> int:
        if case.samples:
            return 1
        # The first turns include caches and lazy imports.
        worker.measure(case.name, 3)
        turns = 1
        while (elapsed := worker.measure(case.name, turns)) < FIRST_GUESS_NS:
            turns *= 4
        return max(1, round(turns * self._settings.sample_ns * case.stretch / (case.parts * elapsed)))

    def _sample(self, case: Case, workers: list[WorkerProcess]) -> dict[str, float]:
        """Run the case in these workers at the same time; return the nanoseconds of one operation by mode."""
        asked = [worker for worker in workers if self._ask(case, worker, "run")]
        times = {worker: self._answer(case, worker) for worker in asked}
        return {
            worker.column: elapsed / (self._turns[case.name, worker.column] * case.per)
            for worker, elapsed in times.items()
            if elapsed is not None
        }

    def _started(self, case: Case, worker: WorkerProcess) -> bool:
        return self._ask(case, worker, "start") and self._answer(case, worker) is not None

    def _ask(self, case: Case, worker: WorkerProcess, verb: str) -> bool:
        """Send a request; note a failure."""
        try:
            worker.ask(verb, case.name, self._turns[case.name, worker.column])
        except WorkerError as error:
            self.measured.failures[case.name, worker.column] = str(error)
            return False
        return True

    def _answer(self, case: Case, worker: WorkerProcess) -> int | None:
        """Read the answer to a request; note a failure."""
        try:
            return worker.answer()
        except WorkerError as error:
            self.measured.failures[case.name, worker.column] = str(error)
            return None

    def _shuffled(self, items: list[T]) -> list[T]:
        return self._random.sample(items, len(items))


def _is_wanted(case: Case, mode: str) -> bool:
    if mode in (("idle", "guarded") if case.database else (SERVICE_MODE,)):
        return False
    if case.sweep is not None:
        return mode in SWEEP_MODES
    return case.reference or mode not in REFERENCE_MODES
