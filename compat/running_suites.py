"""Suites of tests, and running one in a mode until each of its tests has an outcome."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.oracle.outcomes import SHARED, Lines
from tests.oracle.tracing import environment

if TYPE_CHECKING:
    from collections.abc import Iterable

HERE = Path(__file__).parent
NAMED = ("example.com", "destination.com", "proxy.com", "dummy")
"""Hosts that tests of HTTP name in requests on sockets of their own making, which reach nobody."""
SILENCE = 60
"""Seconds without a new line after which a test counts as hung."""
RESTARTS = 25
LEFT_OUT = ("test.test_socket.ThreadedVSOCKSocketStreamTest.testStream",)
"""Tests that hang without a guard: a connection between virtual machines, where there is only one."""
STARTING = ("test_subprocess", "test_asyncio.test_subprocess")
"""Modules whose tests all start processes, which is declared for them."""
PREFIX = "suite-"
GRANTED = re.compile(rf"{re.escape(tempfile.gettempdir())}/{PREFIX}\w+/work")
LOOPBACK = ("127.0.0.1", "0.0.0.0", "[::]")


@dataclass
class Suite:
    """Tests that run together, and the program that runs them."""

    name: str
    version: str
    python: str
    program: str
    spec: dict[str, Any] = field(default_factory=dict)
    targets: tuple[str, ...] = LOOPBACK
    source: Path | None = None
    modes: tuple[str, ...] = ("idle", "guarded")
    processes: bool = False


@dataclass
class Outcomes:
    """Outcomes by test (a word and the error's text), and the refusals during each."""

    words: dict[str, tuple[str, str]] = field(default_factory=dict)
    denied: dict[str, list[str]] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Return how many tests ran, failed and were skipped."""
        words = [word for word, _ in self.words.values()]
        good = {"ok", "skipped"}
        return {
            "ran": len(words),
            "failed": sum(word not in good for word in words),
            "skipped": words.count("skipped"),
        }


class Run:
    """One run of a suite in a mode; a test that hangs or ends the process is noted, and the others follow."""

    def __init__(self, suite: Suite, mode: str, only: Iterable[str] = ()) -> None:
        self.suite = suite
        self.mode = mode
        self.only = sorted(only)
        self.outcomes = Outcomes()
        self._log = b""
        for _ in range(RESTARTS):
            if self._attempt():
                return

    def _attempt(self) -> bool:
        """Run what has no outcome yet; tell whether the process came to its end."""
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            return self._in(folder)
        finally:
            for path, _, _ in os.walk(folder):
                with contextlib.suppress(OSError):
                    Path(path).chmod(0o700)
            shutil.rmtree(folder, ignore_errors=True)

    def _in(self, base: Path) -> bool:
        work, report, log = base / "work", base / "lines", base / "work" / "log"
        for name in ("", "here", "tmp", "home"):
            (work / name).mkdir()
        if self.suite.source is not None:
            shutil.copytree(self.suite.source, work / "source", symlinks=True)
        report.touch()
        os.truncate(report, SHARED)
        with report.open("r+b") as file:
            lines = Lines(file.fileno())
        spec = {**self.suite.spec, "mode": self.mode, "folder": str(work), "lines": str(report)}
        spec |= {"targets": self.suite.targets, "processes": self.suite.processes}
        spec |= {"skip": sorted({*LEFT_OUT, *self.outcomes.words}), "only": self.only}
        (base / "spec").write_text(json.dumps(spec))
        command = [self.suite.python, "-P", str(HERE / self.suite.program), str(base / "spec")]
        with log.open("wb") as output:
            child = subprocess.Popen(
                command,
                env=environment(str(work)),
                cwd=work / "here",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            ended = self._wait(child, lines)
        return self._read(lines, "crashed" if ended else "hung", log.read_bytes())

    def _wait(self, child: subprocess.Popen[bytes], lines: Lines) -> bool:
        """Wait for the end; stop a process that says nothing for long. Tell whether it ended by itself."""
        size, since = -1, time.monotonic()
        try:
            while time.monotonic() - since < SILENCE:
                if int.from_bytes(lines.memory[0:8], "little") != size:
                    size, since = int.from_bytes(lines.memory[0:8], "little"), time.monotonic()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(0.2)
                    return True
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _read(self, lines: Lines, word: str, log: bytes) -> bool:
        """Read the lines; a test without an outcome, or the module without a test, gets a word."""
        current, running = None, None
        for kind, *fields in map(json.loads, lines.read()):
            if kind in ("test", "outcome"):
                fields[1] = GRANTED.sub("GRANTED", fields[1])  # parameters of a test may be paths
            if kind == "test":
                current = running = fields[1]
            elif kind == "denied":
                self.outcomes.denied.setdefault(current or "", []).append(" ".join(fields))
            elif kind == "outcome":
                self.outcomes.words[fields[1]] = (fields[2], fields[3])
                running = None
            elif kind == "complete":
                return True
        text = log[-300:].decode(errors="replace")
        if running is None:
            self.outcomes.words[f"{self.suite.name} (end)"] = (word, text)
            return True
        self.outcomes.words[running] = (word, text)
        return False


def cpython_suites(python: str, names: list[str]) -> list[Suite]:
    """Return CPython's test modules that an interpreter has; asyncio's one by one."""
    wanted = [line for line in (HERE / "cpython.txt").read_text().split("\n") if line and not line.startswith("#")]
    code = (
        "import importlib.util, json, pkgutil, platform, sys, test\n"
        "found = []\n"
        "for name in sys.argv[1:]:\n"
        "    spec = importlib.util.find_spec('test.' + name)\n"
        "    if name == 'test_asyncio':\n"
        "        parts = pkgutil.iter_modules(spec.submodule_search_locations)\n"
        "        found += ['test_asyncio.' + part.name for part in parts if part.name.startswith('test_')]\n"
        "    elif spec is not None:\n"
        "        found.append(name)\n"
        "print(json.dumps([platform.python_version(), found]))\n"
    )
    done = subprocess.run([python, "-c", code, *wanted], capture_output=True, text=True, check=True)
    version, found = json.loads(done.stdout)
    return [
        Suite(
            module,
            version,
            python,
            "suite_cpython.py",
            {"module": module},
            (*LOOPBACK, *NAMED) if module in ("test_httplib", "test_urllib2") else LOOPBACK,
            processes=module in STARTING,
        )
        for module in found
        if not names or module in names or module.partition(".")[0] in names
    ]
