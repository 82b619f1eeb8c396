"""Imports of popular packages, each in a new process, by the processor time of the import alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from bench.cases.work import IDLE, LIMIT
from bench.registry import Case, UnavailableError, add

if TYPE_CHECKING:
    from bench.fixture import Fixture
    from bench.registry import Loop

ROUNDS = 24
PACKAGES = {
    "pandas": "pandas",
    "matplotlib": "matplotlib.pyplot",
    "FastAPI": "fastapi",
    "scikit-learn": "sklearn.ensemble",
    "torch": "torch",
}
"""Module to import, by name."""


def _run(bed: Fixture, mode: str, module: str, names: str) -> str:
    """Start a new process; matplotlib stores its font list in the declared folder."""
    folder = bed.ground.work
    return subprocess.run(
        [sys.executable, "-m", "bench.fresh", mode, module, str(folder)],
        input=names,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"MPLCONFIGDIR": str(folder / "matplotlib")},
    ).stdout


def _prepared(bed: Fixture, name: str) -> Loop:
    module = PACKAGES[name]
    if find_spec(module.partition(".")[0]) is None:
        raise UnavailableError(f"{name} is not installed: make compat")
    names = json.dumps(json.loads(_run(bed, "guarded", "", "")))

    def loop(turns: int) -> int:
        return sum(int(_run(bed, bed.mode, module, names).split()[-1]) for _ in range(turns))

    return loop


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
            popular=True,
        )
    )


for _name in PACKAGES:
    _add(_name)
