"""Imports of popular packages, each in a new process, by the processor time of the import alone."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.cases.work import IDLE, LIMIT
from bench.registry import Case, UnavailableError, add

if TYPE_CHECKING:
    from bench.fixture import Fixture

ROUNDS = 24
PACKAGES = {
    "pandas": "pandas",
    "matplotlib": "matplotlib.pyplot",
    "FastAPI": "fastapi",
    "scikit-learn": "sklearn.ensemble",
    "torch": "torch",
}
"""Module to import, by name."""


class Import:
    """New process that imports a package; matplotlib stores its font list in the declared folder."""

    def __init__(self, bed: Fixture, module: str) -> None:
        self._folder = bed.ground.work
        self._mode = bed.mode
        self._module = module
        self._seed = 0
        with self._process("guarded", "") as listing:
            self._names, errors = listing.communicate()
        if listing.returncode != 0:
            raise RuntimeError(errors)
        self._ready: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, and wait until it can begin."""
        self._seed += 1
        process = self._process(self._mode, self._module)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(self._names)
        process.stdin.flush()
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(process.communicate()[1])
        self._ready = process

    def __call__(self, turns: int) -> int:
        """Import the package in that many processes; return the nanoseconds."""
        total = 0
        for _ in range(turns):
            if self._ready is None:
                self.start()
            process, self._ready = self._ready, None
            assert process is not None
            answer, errors = process.communicate("\n")
            if process.returncode != 0:
                raise RuntimeError(errors)
            total += int(answer.split()[-1])
        return total

    def _process(self, mode: str, module: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "bench.fresh", mode, module, str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Each round has another layout of sets and dictionaries, the same one in all modes.
            env=os.environ | {"MPLCONFIGDIR": str(self._folder / "matplotlib"), "PYTHONHASHSEED": str(self._seed)},
        )


def _prepared(bed: Fixture, name: str) -> Import:
    module = PACKAGES[name]
    if find_spec(module.partition(".")[0]) is None:
        raise UnavailableError(f"{name} is not installed: make compat")
    return Import(bed, module)


def _add(name: str) -> None:
    add(
        Case(
            f"import {name}",
            lambda bed: _prepared(bed, name),
            limit=LIMIT,
            idle_limit=IDLE,
            wrapped=False,
            reference=False,
            parts=1,
            samples=ROUNDS,
            beside=True,
            together=True,
            popular=True,
        )
    )


for _name in PACKAGES:
    _add(_name)
