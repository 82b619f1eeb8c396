"""The oracle: what guarded code did, as the kernel saw it, compared with the policy.

usage: python -m tests.oracle [--only callables|tests] [--module NAME ...] [--minor 3.12 ...] [--python PATH ...]
                              [--classify]

Exit status 1 if there is a hole or a bug that tests/oracle/accepted.toml does not list, or an entry there is unused.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.oracle import audit, callables, classification, regression
from tests.oracle.accepted import Accepted
from tests.oracle.tracing import BUILD, NoContainment, tracer

SUMMARY = ("callables", "calls", "tests", "holes", "bugs", "other", "accepted")


def interpreters(further):
    """Return this interpreter and further ones, by minor version."""
    found = {classification.this_minor(): os.path.abspath(sys.executable)}
    for python in further:
        code = "import sys; print('{}.{}'.format(*sys.version_info))"
        minor = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        found.setdefault(minor, os.path.abspath(python))
    return dict(sorted(found.items()))


class Oracle:
    """One run over all interpreters."""

    def __init__(self, report, work):
        self.report = Path(report)
        self.work = work
        self.accepted = Accepted()
        self.totals = {}
        self.open = []
        self.settled = []

    def _is_accepted(self, minor, **found):
        reason = self.accepted.reason(minor, **found)
        if reason is not None:
            self.settled.append(f"{minor} {' '.join(found.values())}: {reason}")
        return reason is not None

    # ---- driver (a) ------------------------------------------------------------------------------------------------

    def run_callables(self, minor, python, *, classify, modules=None):
        """Call everything, or all of some modules; judge, confirm and report."""
        run = callables.Run(python, self.work, only_modules=modules)
        found = callables.unique(run)
        confirmed, sources = callables.confirm(run, python, self.work, found)
        counts = {"callables": run.chosen, "calls": run.calls, "accepted": 0, "holes": 0, "bugs": 0, "other": 0}
        for (name, kind, call, text), (finding, times) in sorted(found.items()):
            again = (name, kind, call, text) in confirmed
            counts[self._settle(minor, kind, name, call, text, finding, times, again, sources)] += 1
        counts["types without an instance"] = len(run.without_instance)
        self.totals[minor, "callables"] = counts
        if classify:
            classification.write(minor, classification.classes(run))

    def _settle(self, minor, kind, name, call, text, finding, times, again, sources):
        if self._is_accepted(minor, kind=kind, callable=name, call=call, object=text):
            return "accepted"
        number = len(self.open) + 1
        self.open.append(
            f"{minor} {kind}: {name}: {call} {text} ({times} calls, {'alone too' if again else 'not alone'})"
        )
        source = sources.get(finding.window)
        if source is not None:
            path = self.report / f"{minor}-{number:03}-{kind}-{name}.py"
            path.write_text(callables.reproduction(source, finding))
        return {"hole": "holes", "bug": "bugs"}.get(kind, "other")

    # ---- driver (b) ------------------------------------------------------------------------------------------------

    def run_tests(self, minor, python, *, modules=None):
        """Run CPython's tests with and without a guard, judge and report."""
        modules = available(python, modules or regression.MODULES)
        with ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(regression.Run, python, self.work, modules, guarded=on) for on in (True, False)]
            guarded, bare = (run.result() for run in runs)
        counts = {"modules": len(modules), "tests": len(guarded.outcomes), "accepted": 0, "holes": 0, "bugs": 0}
        seen = set()
        for test, finding in regression.findings(guarded, bare):
            text = finding.object.replace(guarded.base, "BASE")
            key = (test, finding.kind, finding.call, text)
            if key in seen:
                continue
            seen.add(key)
            if self._is_accepted(minor, kind=finding.kind, test=test, call=finding.call, object=text):
                counts["accepted"] += 1
                continue
            counts["holes" if finding.kind == "hole" else "bugs"] += 1
            self.open.append(f"{minor} {finding.kind}: {test}: {finding.call} {text}; run: python -m unittest {test}")
        counts["refusals explained"] = len(regression.explained(guarded, bare))
        self.totals[minor, "tests"] = counts

    # ---- result ----------------------------------------------------------------------------------------------------

    def total(self, minor):
        """Return the numbers of both drivers for a minor version, in words."""
        summed = Counter()
        for driver in ("callables", "tests"):
            summed.update(self.totals.get((minor, driver), {}))
        return ", ".join(f"{summed[what]} {what}" for what in SUMMARY)

    def finish(self, minors, *, complete):
        """Print the totals and what is open; return the exit status."""
        unused = self.accepted.unused(minors) if complete else []
        for (minor, driver), counts in sorted(self.totals.items()):
            print(
                f"oracle: CPython {minor}, {driver}: "
                + ", ".join(f"{number} {what}" for what, number in counts.items())
            )
        for minor in minors:
            print(f"oracle: CPython {minor} in total: {self.total(minor)}")
        for line in self.open:
            print(f"oracle: open: {line}")
        for entry in unused:
            print(f"oracle: unused entry in accepted.toml: {entry}")
        for name, lines in (("open.txt", self.open), ("accepted.txt", self.settled)):
            (self.report / name).write_text("".join(line + "\n" for line in lines))
        print(f"oracle: {len(self.open)} open, {len(unused)} unused entries; reproductions in {self.report}")
        return 1 if self.open or unused else 0


def available(python, modules):
    """Return those of the test modules that an interpreter has; exit when it has none of them."""
    code = (
        "import importlib, pkgutil, sys; "
        "names = {found.name for found in pkgutil.iter_modules(importlib.import_module('test').__path__)}; "
        "print(*[name for name in sys.argv[1:] if name in names])"
    )
    names = [name.removeprefix("test.") for name in modules]
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=False)
    if not (found := done.stdout.split()):
        sys.exit(f"oracle: {python} has none of these test modules: {', '.join(names)}")
    return found


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.oracle")
    parser.add_argument("--only", choices=("callables", "tests"))
    parser.add_argument("--module", action="append", help="a native module, or with --only tests a test module")
    parser.add_argument("--minor", action="append")
    parser.add_argument("--python", action="append", default=[], help="a further interpreter")
    parser.add_argument("--classify", action="store_true", help="write the class of each callable again")
    parser.add_argument("--report", default=str(BUILD / "report"))
    given = parser.parse_args()
    shutil.rmtree(given.report, ignore_errors=True)
    os.makedirs(given.report)
    chosen = {
        minor: python for minor, python in interpreters(given.python).items() if not given.minor or minor in given.minor
    }
    tracer()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        oracle = Oracle(given.report, work)
        steps, options = [], {"classify": given.classify, "modules": given.module}
        for minor, python in chosen.items():
            if given.only != "tests":
                steps.append(lambda m=minor, p=python: oracle.run_callables(m, p, **options))
            if given.only != "callables":
                steps.append(lambda m=minor, p=python: oracle.run_tests(m, p, modules=given.module))
        try:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for done in [pool.submit(step) for step in steps]:
                    done.result()
            if given.only != "tests" and not given.module:
                print("oracle: " + audit.cross_check(next(iter(chosen.values())), work))
        except NoContainment as error:
            print(f"oracle: nothing was called: {error}", file=sys.stderr)
            return 2
        status = oracle.finish(list(chosen), complete=not (given.only or given.minor or given.module))
    print(f"oracle: {time.monotonic() - started:.0f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
