"""Modules in confined workers: their start, many of them, and approvals that reach them."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import count, repeat
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING

import democrai_sandbox
from bench.registry import Case, add

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

START_LIMIT = 1.0
APPROVAL_SECONDS = 1.0
_READY_SECONDS = {100: 3.0, 1000: 10.0}
_APPROVALS = 50
_NODE = Path(__file__).parents[1] / "isolated_node.py"
_numbers = count()


def _bare(turns: int) -> int:
    start = perf_counter_ns()
    for _ in repeat(None, turns):
        subprocess.run([sys.executable, "-c", "pass"], check=True)
    return perf_counter_ns() - start


def _node(bed: Fixture, what: str, modules: int) -> subprocess.Popen[str]:
    base = bed.ground.temp / f"node-{os.getpid()}-{next(_numbers)}"
    base.mkdir()
    command = [sys.executable, "-P", str(_NODE), what, str(base), str(modules)]
    # As for a host: subjects read the application's folders on its path, and here they would read this repository.
    environment = os.environ | {"PYTHONPATH": str(Path(democrai_sandbox.__file__).parents[1])}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def _asked(node: subprocess.Popen[str], turns: int) -> int:
    assert node.stdin is not None and node.stdout is not None  # noqa: PT018 - both are pipes
    node.stdin.write(f"{turns}\n")
    node.stdin.flush()
    return int(node.stdout.readline())


def _kept(what: str) -> Callable[[Fixture], Loop]:
    """Ask one node again and again; it ends with this process."""

    def prepare(bed: Fixture) -> Loop:
        if not bed.guarded:
            return _bare
        node = _node(bed, what, 1)
        return lambda turns: _asked(node, turns)

    return prepare


add(
    Case(
        "start of a confined worker with its first answer (to python -c pass)",
        _kept("first_answers"),
        limit=START_LIMIT,
        wrapped=False,
        reference=False,
        stretch=4,
    )
)
add(
    Case(
        "approval of a file until a confined worker reads it (to python -c pass)",
        _kept("approvals"),
        within=APPROVAL_SECONDS,
        wrapped=False,
        reference=False,
        parts=1,
        samples=_APPROVALS,
    )
)


def _ready(modules: int) -> Callable[[Fixture], Loop]:
    """Start a new node for each turn."""

    def prepare(bed: Fixture) -> Loop:
        if not bed.guarded:
            return _bare

        def turn(turns: int) -> int:
            spent = 0
            for _ in repeat(None, turns):
                node = _node(bed, "ready", modules)
                spent += _asked(node, 1)
                node.communicate()
            return spent

        return turn

    return prepare


for _modules, _seconds in _READY_SECONDS.items():
    add(
        Case(
            f"start of a node with {_modules} isolated modules and the answer of one (to python -c pass)",
            _ready(_modules),
            within=_seconds,
            wrapped=False,
            reference=False,
            parts=1,
            samples=3,
        )
    )
