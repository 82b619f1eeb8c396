"""Driver's side of a worker: start the process, send requests, and handle failures."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import subprocess
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from bench.workspace import Workspace

REPOSITORY = Path(__file__).resolve().parents[1]
REFERENCE_MODES = ("reference-plain", "reference-guarded")
SERVICE_MODE = "service"
PATIENCE = 120.0
"""Seconds for one answer; the first ones are the slowest, with imports or ten thousand roots to compile."""

ENDING = 2.0
"""Seconds for a worker to end and clean up."""


class WorkerError(Exception):
    """Worker that did not start, or failed case; the text contains the reason."""


@dataclass(frozen=True, slots=True)
class Running:
    """Workers that started, and the errors of the others."""

    workers: dict[str, WorkerProcess]
    failures: dict[str, str]


class WorkerProcess:
    """One interpreter in one mode."""

    def __init__(self, mode: str, python: Path, ground: Workspace) -> None:
        self.mode = mode
        self._process = subprocess.Popen(
            [str(python), "-m", "bench.worker", mode, str(ground.base)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
            cwd=ground.work,
            env=_environment(ground, mode),
        )
        self.python = "unknown"
        self._ending = 0.0

    @property
    def column(self) -> str:
        """Column of its times: in a case about the service, the guard is the one that asks it."""
        return "guarded" if self.mode == SERVICE_MODE else self.mode

    def __enter__(self) -> Self:
        self.python = str(self._read()["python"])
        return self

    def __exit__(self, *_: object) -> None:
        self.let_go()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, self._ending - time.monotonic()))
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def let_go(self) -> None:
        """Stop it by closing its input."""
        self._ending = self._ending or time.monotonic() + ENDING
        if self._process.stdin is not None:
            # Input that a dead worker did not read is discarded.
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def measure(self, case: str, turns: int) -> int:
        """Return the nanoseconds from the worker."""
        self.ask("run", case, turns)
        return self.answer()

    def ask(self, verb: str, case: str, turns: int) -> None:
        """Send a request."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{verb} {turns} {case}\n")
        except BrokenPipeError:
            raise WorkerError("the worker has ended") from None

    def answer(self) -> int:
        """Return the nanoseconds that the worker answers."""
        return int(self._read()["ns"])

    def _read(self) -> dict[str, Any]:
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], PATIENCE)
        line = pipe.readline() if ready else ""
        if not line:
            raise WorkerError("the worker has ended" if ready else f"no answer within {PATIENCE:.0f} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(str(answer["error"]))
        return answer


@contextmanager
def running(pythons: Mapping[str, Path], ground: Workspace) -> Iterator[Running]:
    """Start a worker for each mode; record the reason of one that cannot start."""
    with ExitStack() as stack:
        result = Running({}, {})
        # Start all before waiting for the first, so that they import in parallel.
        workers = [stack.push(WorkerProcess(mode, python, ground)) for mode, python in pythons.items()]
        for worker in workers:
            try:
                result.workers[worker.mode] = worker.__enter__()
            except WorkerError as error:
                result.failures[worker.mode] = str(error)
        try:
            yield result
        finally:
            # Stop all together, so that they end in parallel.
            for worker in workers:
                worker.let_go()


def _environment(ground: Workspace, mode: str) -> dict[str, str]:
    """Return the same environment for every worker, without the user's files and settings."""
    kept = {name: value for name, value in os.environ.items() if not _is_own(name)}
    search = [REPOSITORY]
    if mode not in REFERENCE_MODES:
        search.append(_package_home())
    return kept | {
        "HOME": str(ground.home),
        "TMPDIR": str(ground.temp),
        "PYTHONPATH": os.pathsep.join(map(str, search)),
        # Otherwise each process has a different layout of sets and dictionaries, and a different speed.
        "PYTHONHASHSEED": "0",
        # Waiting threads of numeric libraries would count as work.
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _is_own(name: str) -> bool:
    """Exclude proxy settings, which would lead clients to another server, and certificate settings."""
    return name.startswith(("DEMOCRAI_", "PYTHON", "XDG_")) or name.lower().endswith(("_proxy", "_ca_bundle"))


def _package_home() -> Path:
    """Return the directory of the package for this interpreter, or the source tree."""
    spec = importlib.util.find_spec("democrai_sandbox")
    if spec is None or spec.origin is None:
        return REPOSITORY / "src"
    return Path(spec.origin).parents[1]
