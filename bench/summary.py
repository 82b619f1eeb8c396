"""Convert rounds to rows: medians of the ratios inside each round, their spread, and the verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING

from bench.cases.sweeps import FLAT

if TYPE_CHECKING:
    from bench.registry import Case
    from bench.rounds import Measured

BASES = {
    "control": "plain",
    "idle": "plain",
    "guarded": "plain",
    "reference-guarded": "reference-plain",
}
"""Baseline of each mode: not installed, on the same interpreter."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Median of a mode's ratios, and the half of them around it."""

    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """One case of the table."""

    name: str
    nanoseconds: dict[str, float]
    ratios: dict[str, Ratio]
    limit: float | None
    idle_limit: float | None
    cheaper: float | None
    """Required factor to the reference product."""
    factor: float | None
    """Measured factor to the reference product."""
    within: float | None
    """Maximum seconds."""
    seconds: float | None
    """Measured seconds, if of interest."""
    misses: tuple[str, ...]
    unmeasured: str | None = None
    """Reason of a missing baseline: a client that is not installed."""


@dataclass(frozen=True, slots=True)
class Series:
    """One sweep."""

    name: str
    points: dict[int, Ratio]
    spread: float | None
    """Ratio of the most expensive point to the cheapest."""
    misses: tuple[str, ...]


def rows(cases: list[Case], measured: Measured) -> list[Row]:
    """Summarize every case that has a row."""
    return [_row(case, measured) for case in cases if case.sweep is None]


def series(cases: list[Case], measured: Measured) -> list[Series]:
    """Summarize the sweeps."""
    found: dict[str, dict[int, Ratio]] = {}
    failed = set()
    for case in cases:
        if case.sweep is None:
            continue
        points = found.setdefault(case.sweep.series, {})
        if (case.name, "guarded") in measured.failures:
            failed.add(case.sweep.series)
        ratio = _ratio(measured.rounds[case.name], "guarded")
        if ratio is not None:
            points[case.sweep.point] = ratio
    return [_series(name, points, failed=name in failed) for name, points in found.items()]


def _series(name: str, points: dict[int, Ratio], *, failed: bool) -> Series:
    if failed or not points:
        return Series(name, points, None, ("guarded fails",) if failed else ())
    middles = [ratio.middle for ratio in points.values()]
    spread = max(middles) / min(middles)
    return Series(name, points, spread, ("not flat",) if spread > FLAT else ())


def _row(case: Case, measured: Measured) -> Row:
    rounds = measured.rounds[case.name]
    nanoseconds = {}
    for mode in measured.versions:
        times = [times[mode] for times in rounds if mode in times]
        if times:
            nanoseconds[mode] = median(times)
    ratios = {mode: ratio for mode in BASES if (ratio := _ratio(rounds, mode)) is not None}
    seconds = nanoseconds["guarded"] / 1e9 if case.database and "guarded" in nanoseconds else None
    factor = None
    if case.cheaper is not None and {"guarded", "reference-guarded"} <= nanoseconds.keys():
        factor = nanoseconds["reference-guarded"] / nanoseconds["guarded"]
    return Row(
        case.name,
        nanoseconds,
        ratios,
        case.limit,
        case.idle_limit,
        case.cheaper,
        factor,
        case.within,
        seconds,
        _misses(case, measured, ratios, factor, seconds),
        measured.failures.get((case.name, "plain")),
    )


def _ratio(rounds: list[dict[str, float]], mode: str) -> Ratio | None:
    base = BASES[mode]
    values = [times[mode] / times[base] for times in rounds if mode in times and base in times]
    if len(values) < 2:
        return None
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Ratio(middle, low, high)


def _misses(
    case: Case, measured: Measured, ratios: dict[str, Ratio], factor: float | None, seconds: float | None
) -> tuple[str, ...]:
    """Return the exceeded limits; a failure in a required mode and an untested limit are misses too."""
    if (case.name, "plain") in measured.failures:
        return () if case.limit is None else ("not measured",)
    misses = []
    for mode, limit in (("idle", case.idle_limit), ("guarded", case.limit)):
        if (case.name, mode) in measured.failures:
            misses.append(f"{mode} fails")
        elif limit is not None and mode in ratios and round(ratios[mode].middle, 2) > limit:  # as printed
            misses.append(mode)
    if case.cheaper is not None and factor is not None and factor < case.cheaper:
        misses.append("reference")
    if case.within is not None and seconds is not None and seconds > case.within:
        misses.append("too slow")
    return tuple(misses)
