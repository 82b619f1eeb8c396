"""The list of cases: what is measured, against what, and which ratio it must keep."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.bed import Bed
    from bench.decisions import Database

Loop = Callable[[int], int]
"""Performs the operation that many times and answers the nanoseconds it took."""

Access = tuple[tuple[str, str], ...]
"""Network rules: each an operation and a target."""

IDLE_LIMIT = 1.05
PARTS = 4
SHORT_PARTS = 12
"""For what is judged by a few percent: parts so short that many of them fall between two turns of the scheduler."""


class UnavailableError(Exception):
    """A case needs what is not installed here; the text says what installs it."""


def no_access(bed: Bed) -> Access:
    """Declare no network rules."""
    del bed
    return ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """The place of a case in a series that has to stay flat."""

    series: str
    point: int


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    name: str
    prepare: Callable[[Bed], Loop]
    limit: float | None = None
    """Guarded time over not-installed time, at most; None shows the row without a target."""
    idle_limit: float | None = None
    cheaper: float | None = None
    """The reference product must take at least this many times as long."""
    wrapped: bool = True
    """Whether the worker runs the loop inside its guard; a case that enters guards by itself says no."""
    per: int = 1
    """Operations in one turn of the loop."""
    roots: int = 1
    """Allowed roots of the guard around the loop."""
    sweep: Sweep | None = None
    access: Callable[[Bed], Access] = no_access
    """The network rules of that guard."""
    reference: bool = True
    """Whether the reference product guards this at all."""
    parts: int = PARTS
    """A sample is the best of so many equal parts: what the scheduler takes for others falls into some of them only."""
    stretch: int = 1
    """Samples so many times as long: one that takes a millisecond is not in its stride after a dozen turns."""
    beside: bool = False
    """Whether the loop runs on the server's processor: one that waits for each answer is far steadier there."""
    database: Database | None = None
    """What is stored for the access-policy service; such a case is measured where the guard asks that service."""
    within: float | None = None
    """Seconds that the guarded turn may take, whatever it is compared with."""
    samples: int | None = None
    """So many rounds in all, of one turn each, for what takes so long that few have to do."""
    popular: bool = False
    """Whether it needs popular packages: the environment that has them measures it, where there is one."""


CASES: dict[str, Case] = {}


def add(case: Case) -> None:
    """Enter a case in the list; a name stands for one case."""
    if case.name in CASES:
        raise ValueError(f"two benchmark cases are called {case.name!r}")
    CASES[case.name] = case


def case(
    name: str,
    *,
    limit: float | None = None,
    cheaper: float | None = None,
    wrapped: bool = True,
    per: int = 1,
    idle: float = IDLE_LIMIT,
    access: Callable[[Bed], Access] = no_access,
    reference: bool = True,
    parts: int = PARTS,
    stretch: int = 1,
    beside: bool = False,
) -> Callable[[Callable[[Bed], Loop]], Callable[[Bed], Loop]]:
    """Register the decorated function as the preparation of a case; a limited row is limited when idle too."""

    def register(prepare: Callable[[Bed], Loop]) -> Callable[[Bed], Loop]:
        idle_limit = None if limit is None else idle
        add(
            Case(
                name,
                prepare,
                limit,
                idle_limit,
                cheaper,
                wrapped,
                per,
                access=access,
                reference=reference,
                parts=parts,
                stretch=stretch,
                beside=beside,
            )
        )
        return prepare

    return register
