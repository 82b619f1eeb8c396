"""One import in a process of its own: `python -m bench.fresh MODE PACKAGE FOLDER` prints the nanoseconds it took.

Without a package it prints the names of what the guard has loaded by then. Every mode loads those before its clock
starts: otherwise a package would find more of the standard library ready beside a guard than without one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
from time import process_time_ns

from bench.modes import MODES

OWN = ("bench", "democrai_sandbox")


def main() -> None:
    """Print the processor time of the import, or the names of what is loaded."""
    mode, package, folder = sys.argv[1:]
    entered = MODES[mode]()
    if not package:
        print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] not in OWN)))
        return
    load(json.loads(sys.stdin.read()))
    with entered.guard([folder]):
        start = process_time_ns()
        importlib.import_module(package)
        elapsed = process_time_ns() - start
    print(elapsed)


def load(names: list[str]) -> None:
    """Import what there is of some modules."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    main()
