"""One import in a new process: `python -m bench.fresh MODE PACKAGE FOLDER`.

The first line of standard input is a list of modules to load before the measurement; the process then prints "ready",
waits for another line, and prints the nanoseconds of the import.

Without a package it prints the names of the modules that the guard has loaded by then. Every mode loads those first:
otherwise a package would find more of the standard library loaded with a guard than without.
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
    """Print the processor time of the import, or the names of the loaded modules."""
    mode, package, folder = sys.argv[1:]
    entered = MODES[mode]()
    if not package:
        print(json.dumps(sorted(name for name in sys.modules if name.partition(".")[0] not in OWN)))
        return
    load(json.loads(sys.stdin.readline()))
    print("ready", flush=True)
    sys.stdin.readline()
    with entered.guard([folder]):
        start = process_time_ns()
        importlib.import_module(package)
        elapsed = process_time_ns() - start
    print(elapsed)


def load(names: list[str]) -> None:
    """Import modules, except missing ones."""
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


if __name__ == "__main__":
    main()
