"""Table on the terminal, and the same numbers as JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from bench.cases.sweeps import FLAT

if TYPE_CHECKING:
    from bench.rounds import Measured, Settings
    from bench.summary import Ratio, Row, Series

HEADINGS = ("operation", "not installed", "idle", "guarded", "reference", "noise", "target", "verdict")


def table(rows: list[Row]) -> str:
    """Lay out the rows."""
    lines = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    texts = ["  ".join(_aligned(line, widths)).rstrip() for line in lines]
    return "\n".join([texts[0], "-" * max(map(len, texts)), *texts[1:]])


def sweeps(series: list[Series]) -> str:
    """Format the sweeps: the guarded ratio at each point, and the most expensive over the cheapest."""
    lines = []
    width = max(len(one.name) for one in series)
    for one in series:
        points = "   ".join(f"{point}: {ratio.middle:.2f}" for point, ratio in sorted(one.points.items()))
        spread = "-" if one.spread is None else f"x{one.spread:.2f}"
        verdict = "MISS: " + ", ".join(one.misses) if one.misses else "pass" if points else "-"
        lines.append(f"{one.name:<{width}}  {points or '-'}   dearest/cheapest {spread}  {verdict}")
    return "\n".join([f"Sweeps, guarded over not installed; flat means within x{FLAT}", *lines])


def legend(measured: Measured) -> str:
    """Return the meaning of the columns, the interpreters, and the missing measurements."""
    versions = measured.versions
    lines = [
        f"Times are on Python {versions.get('plain', '?')}. The other columns are ratios to not installed: medians of",
        "interleaved rounds, ± half the interquartile range.",
        "idle: imported and used once, caller not guarded.  guarded: caller inside a guard.",
        "noise: a second process with nothing installed.",
        "Imports and work of packages: all processes run at the same time, on one processor.",
        "In parentheses: the reference product's time as a multiple of ours; our time.",
        "Access checks, cold starts: the guard's caller, or the host, asks the access-policy service.",
    ]
    if "reference-guarded" in versions:
        lines.append(f"reference: the reference product's guard on Python {versions['reference-guarded']}, to its own.")
    lines += [f"{mode}: not measured: {reason}" for mode, reason in measured.absent.items()]
    lines += _failures(measured)
    return "\n".join(lines)


def _failures(measured: Measured) -> list[str]:
    """Return each reason once, with all its cases."""
    stopped: dict[tuple[str, str], list[str]] = {}
    for (case, mode), reason in measured.failures.items():
        # A failure in the plain mode has its reason in the table.
        if (case, "plain") in measured.failures:
            continue
        stopped.setdefault((mode, reason), []).append(case)
    return [f"{mode}, not measured: {'; '.join(cases)}: {reason}" for (mode, reason), cases in stopped.items()]


def as_json(rows: list[Row], series: list[Series], measured: Measured, settings: Settings) -> str:
    """Return everything, including single rounds."""
    content = {
        "settings": dataclasses.asdict(settings),
        "versions": measured.versions,
        "rows": [dataclasses.asdict(row) for row in rows],
        "sweeps": [dataclasses.asdict(one) for one in series],
        "absent": measured.absent,
        "failures": [
            {"case": case, "mode": mode, "reason": reason} for (case, mode), reason in measured.failures.items()
        ],
        "rounds": measured.rounds,
    }
    return json.dumps(content, indent=1) + "\n"


def _aligned(cells: tuple[str, ...], widths: list[int]) -> list[str]:
    """Align names and words to the left, numbers to the right."""
    left = {0, 6, 7}
    return [
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        _time(row.nanoseconds.get("plain")),
        _ratio(row.ratios.get("idle")),
        _ratio(row.ratios.get("guarded")),
        _ratio(row.ratios.get("reference-guarded")),
        _ratio(row.ratios.get("control")),
        _target(row),
        _verdict(row),
    )


def _time(nanoseconds: float | None) -> str:
    if nanoseconds is None:
        return "-"
    if nanoseconds < 1_000:
        return f"{nanoseconds:.1f} ns"
    if nanoseconds < 1_000_000:
        return f"{nanoseconds / 1_000:.2f} us"
    return f"{nanoseconds / 1_000_000:.2f} ms"


def _ratio(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    half = (ratio.high - ratio.low) / 2
    if ratio.middle >= 100:
        return f"{ratio.middle:.0f} ±{half:.0f}"
    return f"{ratio.middle:.2f} ±{half:.2f}"


def _target(row: Row) -> str:
    targets = [] if row.limit is None else [f"<= {row.limit:.2f}"]
    targets += [] if row.idle_limit is None else [f"idle {row.idle_limit:.2f}"]
    targets += [] if row.cheaper is None else [f"reference/{row.cheaper:.0f}"]
    targets += [] if row.within is None else [f"<= {row.within:.2f} s"]
    return ", ".join(targets)


def _verdict(row: Row) -> str:
    if row.unmeasured is not None:
        return f"not measured: {row.unmeasured}"
    text = "MISS: " + ", ".join(row.misses) if row.misses else "pass"
    figures = _figures(row)
    if row.cheaper is not None and row.factor is None and not row.misses:
        return f"- {figures}".rstrip()
    if row.limit is None and row.cheaper is None and row.within is None and not row.misses:
        return figures
    return f"{text} {figures}".rstrip() if "guarded" in row.ratios or row.misses else "-"


def _figures(row: Row) -> str:
    """Return the factor to the reference product, and the time."""
    known = []
    if row.factor is not None:
        known.append(f"reference/{row.factor:.{1 if row.factor < 10 else 0}f}")
    if row.seconds is not None:
        known.append(_time(row.seconds * 1e9))
    return f"({', '.join(known)})" if known else ""
