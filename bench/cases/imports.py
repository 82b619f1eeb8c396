"""Imports, from a file and of loaded modules."""

from __future__ import annotations

import py_compile
import sys
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.registry import case
from bench.workspace import FRESH_MODULE

if TYPE_CHECKING:
    from bench.fixture import Fixture
    from bench.registry import Loop


@case("fresh import", limit=1.3)
def fresh_import(bed: Fixture) -> Loop:
    sys.path.insert(0, str(bed.ground.modules))
    py_compile.compile(str(bed.ground.modules / f"{FRESH_MODULE}.py"))

    def loop(turns: int) -> int:
        modules = sys.modules
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            __import__(FRESH_MODULE)
            del modules[FRESH_MODULE]
        return perf_counter_ns() - start

    return loop


@case("import of a loaded module")
def loaded_import(bed: Fixture) -> Loop:
    del bed

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            import json  # noqa: F401 - the statement is measured
        return perf_counter_ns() - start

    return loop
