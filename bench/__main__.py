"""`python -m bench`: measure, print the table, and name missed targets."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from bench import report, summary
from bench.cases import CASES
from bench.cases.sweeps import DEPTHS
from bench.decisions import prepared_databases
from bench.reference import ReferenceUnavailableError, reference_python
from bench.rounds import FULL, QUICK, Campaign, Measured, Settings
from bench.serving import serving
from bench.workers import REFERENCE_MODES, REPOSITORY, SERVICE_MODE
from bench.workspace import prepared_workspace

if TYPE_CHECKING:
    from bench.registry import Case


COMPAT_PYTHON = REPOSITORY / ".venvs" / "compat" / "bin" / "python"
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """Run the benchmarks until they finish or a signal arrives; then stop everything that was started."""
    for number in ENDING:
        signal.signal(number, _interrupt)
    try:
        return _run()
    except KeyboardInterrupt as ended:
        _progress("")
        print("Stopped by a signal: no table.", file=sys.stderr)
        return 128 + int(ended.args[0])


def _interrupt(number: int, _: object) -> NoReturn:
    """Leave all contexts, once: another signal must not interrupt the cleanup."""
    for other in ENDING:
        signal.signal(other, signal.SIG_IGN)
    raise KeyboardInterrupt(number)


def _run() -> int:
    """Measure and print; return 1 if a checked target is missed."""
    options = _options()
    cases = [case for case in CASES.values() if _wanted(case.name, options.only)]
    if not cases:
        print(f"Unknown case: {' or '.join(options.only)}. The cases: {'; '.join(CASES)}.", file=sys.stderr)
        return 2
    settings = QUICK if options.quick else FULL
    measured = _measured(cases, settings, options.packages.absolute(), reference=not options.no_reference)
    rows, series = summary.rows(cases, measured), summary.series(cases, measured)
    if rows:
        print(report.table(rows), end="\n\n")
    if series:
        print(report.sweeps(series), end="\n\n")
    print(report.legend(measured))
    if options.json is not None:
        options.json.write_text(report.as_json(rows, series, measured, settings))
    missed = [row.name for row in rows if row.misses] + [one.name for one in series if one.misses]
    complete = all(mode in measured.versions for mode in _own_modes(cases))
    print(_conclusion(missed, complete=complete))
    return 1 if options.check and (missed or not complete) else 0


def _conclusion(missed: list[str], *, complete: bool) -> str:
    if not complete:
        return "The guard was not measured."
    return f"Missed: {'; '.join(missed)}." if missed else "No target is missed."


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="take a few seconds, with rough results")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help="cases whose name contains this")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers, including single rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--no-reference", action="store_true", help="skip the reference product")
    parser.add_argument(
        "--packages",
        metavar="PYTHON",
        type=Path,
        default=COMPAT_PYTHON if COMPAT_PYTHON.exists() else Path(sys.executable),
        help="interpreter with the popular packages; by default that of `make compat`, if it exists",
    )
    return parser.parse_args()


def _wanted(name: str, only: list[str]) -> bool:
    return not only or any(part in name for part in only)


def _measured(cases: list[Case], settings: Settings, packages: Path, *, reference: bool) -> Measured:
    databases = [case.database for case in cases if case.database]
    measured = Measured()
    with prepared_workspace(DEPTHS) as ground, serving(ground), prepared_databases(databases, ground):
        for python, popular in ((Path(sys.executable), False), (packages, True)):
            some = [case for case in cases if case.popular == popular]
            pythons = dict.fromkeys(("plain", "control", "idle", *_own_modes(some)), python)
            if reference and any(case.reference for case in some):
                pythons |= _reference_pythons(measured)
            if some:
                Campaign(some, settings, _progress, measured).run(pythons, ground)
    if not reference:
        measured.absent["reference"] = "left out"
    _progress("")
    return measured


def _reference_pythons(measured: Measured) -> dict[str, Path]:
    """Return the interpreters of the reference product's modes, or record why they are missing."""
    try:
        return dict.fromkeys(REFERENCE_MODES, reference_python())
    except ReferenceUnavailableError as error:
        measured.absent["reference"] = str(error)
        return {}


def _own_modes(cases: list[Case]) -> tuple[str, ...]:
    """Return the modes in which our guard is measured."""
    return ("guarded", SERVICE_MODE) if any(case.database for case in cases) else ("guarded",)


def _progress(text: str) -> None:
    """Show the current measurement on a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
