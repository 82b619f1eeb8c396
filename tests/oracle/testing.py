"""CPython's own regression tests, inside a guard or without one; the program that the tracer runs.

usage: testing.py SPEC   (JSON: base, record, modules, guarded, patience)

Each test module runs in a fork. Tests tell their outcome through shared memory, because guarded code has no way to the
record; the first process writes it there.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
import unittest

sys.path.append(os.path.dirname(os.path.abspath(__file__)))
os.makedirs(os.environ["TMPDIR"], exist_ok=True)

import outcomes
import test.support  # by the host: it looks for modules that do not load in a guard
import world
from test.support import import_helper, os_helper, script_helper, socket_helper, threading_helper, warnings_helper  # noqa: F401

from democrai_sandbox import process_guard_context
from democrai_sandbox.guard import configure_guard
from democrai_sandbox.guard.configuration import allowed_modules, native_names
from democrai_sandbox.guard.runtime_paths import runtime_entries

SPAN = 4096
"""The most tests of one module: the number of a window is the module's place times this, plus the test's."""


class Result(outcomes.Result):
    """Marks the window of each test for the tracer, besides telling its outcome."""

    def startTest(self, test):
        super().startTest(test)
        world.mark(self.window)

    def stopTest(self, test):
        world.mark(self.window | world.LATE)
        super().stopTest(test)


def run_suite(suite, lines, window):
    """Run the tests; inside the guard."""
    suite.run(Result(lines, window))


def fork_body(spec, place, name, lines):
    """Run one module in a fork."""
    folder = f"{spec['base']}/work/{name}"
    os.makedirs(folder)
    os.chdir(folder)
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    world.mark(0, world.END)  # what is open now belongs to the host
    window = place * SPAN
    test.support.use_resources = []
    for absent in native_names() - allowed_modules():
        sys.modules[absent] = None  # what does not load in a guard is missing in both runs
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{name}")  # by the host, as code of the interpreter
        if spec["guarded"]:
            guard = process_guard_context(subject="oracle", allowed_paths=[f"{spec['base']}/work"])
            world.mark(window)
            guard.run(run_suite, suite, lines, window)
        else:
            run_suite(suite, lines, window)
        lines.add("complete", name)
    except BaseException as error:
        lines.add("broken", name, f"{type(error).__name__}: {error}")
    finally:
        world.mark(0, world.END)
        os._exit(0)


def main(spec):
    """Run all modules, one after the other."""
    lines = outcomes.Lines()
    configure_guard(recorder=outcomes.Recorder(lines))
    os.makedirs(f"{spec['base']}/work")
    policy = [(os.fsdecode(path), mask) for path, mask in runtime_entries()] + [(f"{spec['base']}/work", 15)]

    def write(*fields):
        os.write(spec["record"], json.dumps(fields).encode() + b"\n")

    write("start", policy)
    for place, name in enumerate(spec["modules"]):
        lines.clear()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            fork_body(spec, place, name, lines)
        status = wait(pid, spec["patience"])
        write("module", place, name, status, round(time.monotonic() - started, 1))
        text = "".join(line + "\n" for line in lines.read())
        os.write(spec["record"], text.encode())
    write("end")


def wait(pid, patience):
    """Wait for a fork; return its exit status, or "late"."""
    handle = os.pidfd_open(pid)
    ended = select.select([handle], [], [], patience)[0]
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.close(handle)
    return status if ended else "late"


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
