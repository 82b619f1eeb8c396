"""List of cases: the measured operations and their required ratios."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.decisions import Database
    from bench.fixture import Fixture

Loop = Callable[[int], int]
"""Function that runs the operation that many times and returns the nanoseconds."""

Access = tuple[tuple[str, str], ...]
"""Network rules: each an operation and a target."""

IDLE_LIMIT = 1.05
PARTS = 4
SHORT_PARTS = 12
"""For rows with a limit of a few percent: parts so short that many fit between two scheduler interrupts."""


class UnavailableError(Exception):
    """Missing requirement of a case; the text says how to install it."""


def no_access(bed: Fixture) -> Access:
    """Declare no network rules."""
    del bed
    return ()


@dataclass(frozen=True, slots=True)
class Sweep:
    """Position of a case in a series that must stay flat."""

    series: str
    point: int


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    name: str
    prepare: Callable[[Fixture], Loop]
    limit: float | None = None
    """Maximum of guarded time over not-installed time; None shows the row without a target."""
    idle_limit: float | None = None
    cheaper: float | None = None
    """Minimum ratio of the reference product's time to ours."""
    wrapped: bool = True
    """Whether the worker runs the loop inside its guard; false for a case that enters guards itself."""
    per: int = 1
    """Operations in one turn of the loop."""
    roots: int = 1
    """Allowed roots of the guard around the loop."""
    sweep: Sweep | None = None
    access: Callable[[Fixture], Access] = no_access
    """Network rules of that guard."""
    reference: bool = True
    """Whether the reference product guards this operation."""
    parts: int = PARTS
    """A sample is the best of that many equal parts, because other processes disturb only some of them."""
    stretch: int = 1
    """Factor for the length of samples: an operation of a millisecond needs more than a dozen turns to warm up."""
    beside: bool = False
    """Whether the loop runs on the server's processor, which is much steadier for loops that wait for each answer."""
    together: bool = False
    """Whether all modes run at the same time, on one processor with `beside`: the scheduler alternates between them
    every few milliseconds, so they have the same disturbances. Their loops measure the time of the process."""
    database: Database | None = None
    """Data of the access-policy service; such a case is measured where the guard asks that service."""
    within: float | None = None
    """Maximum seconds of the guarded turn."""
    samples: int | None = None
    """Total number of rounds of one turn each in a full run, for slow operations."""
    popular: bool = False
    """Whether it needs popular packages: it is measured in the environment that has them."""


CASES: dict[str, Case] = {}


def add(case: Case) -> None:
    """Register a case; names are unique."""
    if case.name in CASES:
        raise ValueError(f"duplicate benchmark case {case.name!r}")
    CASES[case.name] = case


def case(
    name: str,
    *,
    limit: float | None = None,
    cheaper: float | None = None,
    wrapped: bool = True,
    per: int = 1,
    idle: float = IDLE_LIMIT,
    access: Callable[[Fixture], Access] = no_access,
    reference: bool = True,
    parts: int = PARTS,
    stretch: int = 1,
    beside: bool = False,
) -> Callable[[Callable[[Fixture], Loop]], Callable[[Fixture], Loop]]:
    """Register the decorated function as the preparation of a case; a limited row is limited when idle too."""

    def register(prepare: Callable[[Fixture], Loop]) -> Callable[[Fixture], Loop]:
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
