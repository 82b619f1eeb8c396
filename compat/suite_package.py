"""Run the test suite of a package with pytest in one mode, in a process of its own; `compat.suites` starts it.

usage: suite_package.py SPEC   (a file of JSON: mode, folder, lines, targets, arguments, plugins, skip, only)

Under a guard, pytest itself runs in it: collection, fixtures and tests. The suite is a copy of the source archive in
the granted folder.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
OURS = [str(HERE), str(HERE.parent / "tests" / "oracle")]
sys.path += OURS

import pytest
from guarding import guard_for
from outcomes import Lines

sys.path[:] = [path for path in sys.path if path not in OURS]  # a suite has modules of the same names


class Report:
    """A plugin of pytest that tells the outcome of each test, and leaves out tests by their identity."""

    def __init__(self, lines: Lines, skip: list[str], only: list[str]) -> None:
        self.lines = lines
        self.skip = frozenset(skip)
        self.only = frozenset(only)
        self.outcome = ("ok", "")

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Keep what was asked for."""
        items[:] = [item for item in items if item.nodeid not in self.skip and self._wanted(item.nodeid)]

    def _wanted(self, test: str) -> bool:
        return not self.only or test in self.only

    def pytest_collectreport(self, report: Any) -> None:
        """Tell of a module that cannot be collected."""
        if report.failed:
            self.lines.add("outcome", 0, f"{report.nodeid} (collection)", "failed", str(report.longrepr)[-300:])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test."""
        self.outcome = ("ok", "")
        self.lines.add("test", 0, nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Keep the outcome of a phase; the first one that is not passed counts."""
        if self.outcome[0] != "ok" or report.passed:
            return
        crash = getattr(report.longrepr, "reprcrash", None)
        text = crash.message if crash is not None else str(report.longrepr)
        self.outcome = ("failed" if report.failed else "skipped", text[:300])

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a test."""
        self.lines.add("outcome", 0, nodeid, *self.outcome)


def main(spec: dict[str, Any]) -> None:
    """Run the suite and end at once: threads that a test leaves behind do not count."""
    number = os.open(spec["lines"], os.O_RDWR)
    lines = Lines(number)
    os.close(number)
    guard = guard_for(spec, lines)
    source = f"{spec['folder']}/source"
    os.chdir(source)
    options = [
        "-p",
        "no:cacheprovider",
        "-q",
        "-o",
        "addopts=",
        "--continue-on-collection-errors",
        f"--basetemp={spec['folder']}/tmp/pytest",
        f"--rootdir={source}",
    ]
    options += [option for plugin in spec["plugins"] for option in ("-p", plugin)]
    arguments = [*options, *spec["arguments"]]
    os.environ |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "HYPOTHESIS_NO_PLUGINS": "1"}  # plugins of other packages
    plugins = [Report(lines, spec["skip"], spec["only"])]
    status: object
    try:
        status = pytest.main(arguments, plugins) if guard is None else guard.run(pytest.main, arguments, plugins)
    except BaseException as error:
        status = f"{type(error).__name__}: {error}"
    if status in (0, 1, 2, 5):  # passed, failed, interrupted by a collection error, nothing left
        lines.add("complete")
    else:
        lines.add("outcome", 0, "pytest (end)", "failed", str(status))
        lines.add("complete")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
