"""Bodies of tests in forks of a process that has imported what they need, one such process for all tests of a worker.

For tests of whole hosts and runtimes, which import much. Where it matters what is loaded, and when, a body has a fresh
process: tests.guard.harness.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from functools import cache
from pathlib import Path

from tests.guard import harness

PROGRAM = Path(__file__).with_name("forking.py")
STORE = (
    "democrai_sandbox.access.access",
    "democrai_sandbox.access.events.bus",
    "democrai_sandbox.access.store",
    "democrai_sandbox.access.store.migrations",
    "alembic.command",
    "alembic.runtime.environment",
    "alembic.ddl.sqlite",
    "sqlalchemy.dialects.sqlite",
    "sqlite3",
)
BARE = (
    *("contextlib", "contextvars", "dataclasses", "enum", "errno", "functools", "glob", "inspect", "locale"),
    *(
        "logging",
        "pathlib",
        "queue",
        "re",
        "selectors",
        "shutil",
        "signal",
        "site",
        "sysconfig",
        "tempfile",
        "threading",
    ),
    *("typing", "weakref", "democrai_sandbox.errors", "democrai_sandbox.policy"),
)
ACCESS = ("democrai_sandbox.access", "democrai_sandbox.runtime.access_environment", *STORE)
RUNTIME = ("democrai_sandbox.runtime", "democrai_sandbox.runtime.runtime", "democrai_sandbox.sdk", "asyncio", *STORE)
HOST = ("democrai_sandbox.host", "democrai_sandbox.host.sandbox", *RUNTIME)


class Forks:
    """The process that forks; ends with the tests."""

    def __init__(self, child, modules):
        given = harness.Case.environment(_Nowhere())
        command = [sys.executable, "-P", "-W", "ignore::DeprecationWarning", PROGRAM, child, *modules]
        self._process = subprocess.Popen(
            command, cwd="/", env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._turn = threading.Lock()
        atexit.register(self._end)

    def run(self, order):
        """Return the exit status of a fork; nothing when it took too long."""
        with self._turn:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return json.loads(self._process.stdout.readline())

    def _end(self):
        self._process.communicate()


class _Nowhere:
    """Stands for a case whose folders nobody uses: each fork gets its own."""

    base = Path(os.sep)


@cache
def forks(child, modules):
    """Return the process that has imported these."""
    return Forks(child, modules)


class ForkedCase(harness.Case):
    """A private world in which a body runs in a process of its own, with modules imported."""

    modules = ()
    forks_workers = False
    """Whether also the worker processes of its runtime are forks; see tests.services.workers."""
    leaves = False
    """Whether a body ends without having all modules taken apart."""

    def play(self, spec, environment, timeout):
        """Run the body; return its exit status and what it wrote."""
        out, err = self.base / "body.out", self.base / "body.err"
        for path in (out, err):
            path.write_bytes(b"")
        order = {"spec": spec, "environ": environment, "folder": str(self.base), "timeout": timeout}
        order |= {"workers": self.forks_workers and worker_starting(), "leaves": self.leaves}
        status = self.fork(order | {"out": str(out), "err": str(err)})
        if status is None:
            raise subprocess.TimeoutExpired("a body", timeout, out.read_bytes(), err.read_bytes())
        return status, *(path.read_text(errors="replace") for path in (out, err))

    def fork(self, order):
        """Return how the fork for an order ended."""
        return forks(self.child, self.modules).run(order)


def worker_starting():
    """Return by what a body starts workers."""
    from tests.services import workers

    return [str(workers.STARTING), *workers.worker_forks()]


class BareCase(ForkedCase):
    """The same, with what the guard needs imported, but not the guard, and nothing that the guard adapts."""

    modules = BARE


class RuntimeCase(ForkedCase):
    """The same, with the runtime imported."""

    modules = RUNTIME
    leaves = True


class AccessCase(ForkedCase):
    """The same, with the access service imported and no more."""

    modules = ACCESS
    leaves = True


class HostCase(ForkedCase):
    """The same, with the whole host imported, and no certificates, which each one would read."""

    modules = HOST
    leaves = True
    forks_workers = True

    def environment(self, **extra):
        """Return the environment of a body."""
        return super().environment(**{"SSL_CERT_FILE": os.devnull, **extra})
