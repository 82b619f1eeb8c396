"""Entering and leaving guards; not installed, a null context replaces the guard."""

from __future__ import annotations

from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.registry import case

if TYPE_CHECKING:
    from bench.fixture import Fixture
    from bench.registry import Loop


@case("enter+leave, compiled", cheaper=50.0, wrapped=False)
def enter_leave(bed: Fixture) -> Loop:
    guard = bed.guard()

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            with guard:
                pass
        return perf_counter_ns() - start

    return loop


@case("enter+leave, nested")
def enter_leave_nested(bed: Fixture) -> Loop:
    guard = bed.new_guard()

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            with guard:
                pass
        return perf_counter_ns() - start

    return loop


@case("make+enter+leave", wrapped=False)
def make_enter_leave(bed: Fixture) -> Loop:
    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            with bed.new_guard():
                pass
        return perf_counter_ns() - start

    return loop
