"""Run one of CPython's test modules in one mode, in a process of its own; `compat.suites` starts it.

usage: suite_cpython.py SPEC   (a file of JSON: mode, module, folder, lines, targets, skip, only)

Each outcome goes to the file ``lines``, which is mapped into memory, so that a test that ends the process loses none.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import unittest
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path += [str(HERE), str(HERE.parent / "tests" / "oracle")]

import test.support
from guarding import guard_for
from outcomes import Lines, Result
from test.support import import_helper, os_helper, script_helper, socket_helper, threading_helper, warnings_helper  # noqa: F401


def chosen(suite: Any, skip: frozenset[str], only: frozenset[str]) -> unittest.TestSuite:
    """Return the tests of a suite without those to skip, or only some of them; a class keeps its tests together."""
    kept = unittest.TestSuite()
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            kept.addTest(chosen(one, skip, only))
        elif one.id() not in skip and (not only or one.id() in only):
            kept.addTest(one)
    return kept


def run_suite(suite: unittest.TestSuite, lines: Lines) -> None:
    """Run the tests; in the guard, if there is one."""
    suite.run(Result(lines))


def main(spec: dict[str, Any]) -> None:
    """Run the module and end at once: threads that a test leaves behind do not count."""
    number = os.open(spec["lines"], os.O_RDWR)
    lines = Lines(number)
    os.close(number)
    guard = guard_for(spec, lines)
    test.support.use_resources = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell runs in the background
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{spec['module']}")
        suite = chosen(suite, frozenset(spec["skip"]), frozenset(spec["only"]))
        if guard is None:
            run_suite(suite, lines)
        else:
            guard.run(run_suite, suite, lines)
        lines.add("complete")
    except unittest.SkipTest as reason:
        lines.add("outcome", 0, f"test.{spec['module']}", "skipped", str(reason))
        lines.add("complete")
    except BaseException as error:
        lines.add("outcome", 0, f"test.{spec['module']}", "failed", f"{type(error).__name__}: {error}")
        lines.add("complete")
    finally:
        os._exit(0)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
