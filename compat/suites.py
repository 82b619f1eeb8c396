"""Run test suites plain, beside an idle guard, and guarded, and compare each test: ``python -m compat.suites``.

The suites are CPython's own test modules (`compat/cpython.txt`) and those of popular packages (`compat/packages.toml`).
A test that an idle guard changes is an error. One that a guard changes has its reason in `compat/differences.toml`; a
difference without a reason and an entry that explains nothing are errors. Results go to `compat/results`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from compat.comparing import Comparison, Reviewed
from compat.packages import package_suites
from compat.running_suites import Suite, cpython_suites

RESULTS = Path(__file__).parent / "results"
ABOUT = {
    "cpython": "Each module runs in a separate process, in a folder that the guard grants, with loopback declared "
    "(`python -m compat.suites --only cpython`).",
    "packages": "The test suite of each package's source archive runs in a separate process, with a copy of the "
    "archive granted and loopback declared (`python -m compat.suites --only packages`).",
}
SHOWN = 25
TITLE = {"cpython": "CPython's own tests", "packages": "Test suites of packages"}


def version_of(python: str) -> str:
    """Return the version of an interpreter."""
    code = "import platform; print(platform.python_version())"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def write(kind: str, version: str, suites: list[Suite], found: list[dict[str, Any]]) -> None:
    """Write the results; those of suites that did not run this time stay."""
    minor = version.rpartition(".")[0]
    path = RESULTS / (f"{kind}-{minor}.json" if kind == "cpython" else f"{kind}.json")
    before = json.loads(path.read_text())["suites"] if path.exists() else []
    together = {one["name"]: one for one in before + found}
    value = {
        "title": f"{TITLE[kind]} ({minor})" if kind == "cpython" else TITLE[kind],
        "about": ABOUT[kind],
        "python": version,
        "modes": suites[0].modes,
        "suites": [together[name] for name in sorted(together)],
    }
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def run_kind(kind: str, suites: list[Suite], version: str, reviewed: Reviewed) -> int:
    """Compare the suites of a kind; return how many differences have no explanation."""
    minor = version.rpartition(".")[0]
    found, unexplained = [], 0
    for suite in suites:
        comparison = Comparison(suite, minor, reviewed)
        print(comparison.line(), flush=True)
        lines = comparison.unexplained_lines()
        for line in lines[:SHOWN] + [f"... and {len(lines) - SHOWN} more"] * (len(lines) > SHOWN):
            print(f"    {line}", flush=True)
        unexplained += len(comparison.unexplained)
        found.append(comparison.result())
        write(kind, version, suites, found)
    return unexplained


def options_of(arguments: list[str] | None) -> Any:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m compat.suites", description="Compare test suites under the guard.")
    parser.add_argument("--python", action="append", help="an interpreter for which the extensions are compiled")
    parser.add_argument("--only", choices=("cpython", "packages"), help="only suites of one kind")
    parser.add_argument("names", nargs="*", help="suites, such as test_os or click; all without any")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each suite; return 1 for a difference without a reason, or an entry that explains nothing."""
    options = options_of(arguments)
    reviewed, unexplained, minors = Reviewed(), 0, []
    for number, python in enumerate(map(os.path.abspath, options.python or [sys.executable])):
        version = version_of(python)
        minors.append(version.rpartition(".")[0])
        kinds = {"cpython": lambda python=python: cpython_suites(python, options.names)}
        if number == 0:  # packages on the first one alone
            kinds["packages"] = lambda python=python: package_suites(python, options.names)
        for kind, suites in kinds.items():
            chosen = suites() if options.only in (None, kind) else []
            if chosen:
                unexplained += run_kind(kind, chosen, version, reviewed)
    complete = not options.names and not options.only
    unused = reviewed.unused(minors) if complete else []
    for entry in unused:
        print(f"compat/differences.toml: this entry explains nothing: {entry}")
    print(f"{unexplained} differences without a reason, {len(unused)} entries that explain nothing")
    return 1 if unexplained or unused else 0


if __name__ == "__main__":
    sys.exit(main())
