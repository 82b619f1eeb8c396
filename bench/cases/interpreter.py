"""Operations without a relation to the sandbox: plain calls, and operations that raise audit events."""

from __future__ import annotations

import copy
import logging
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.registry import case

if TYPE_CHECKING:
    from bench.fixture import Fixture
    from bench.registry import Loop


class _Discarding:
    """Stream that stores nothing, so that only the formatting of a record is measured."""

    def write(self, text: str) -> None:
        """Discard the text."""

    def flush(self) -> None:
        """Do nothing."""


@case("plain function call", limit=1.05, per=8)
def plain_call(bed: Fixture) -> Loop:
    del bed

    def add(left: int, right: int) -> int:
        return left + right

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            add(1, 2), add(1, 2), add(1, 2), add(1, 2)
            add(1, 2), add(1, 2), add(1, 2), add(1, 2)
        return perf_counter_ns() - start

    return loop


@case("id()", per=8)
def identity(bed: Fixture) -> Loop:
    def loop(turns: int) -> int:
        it = bed
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            id(it), id(it), id(it), id(it), id(it), id(it), id(it), id(it)
        return perf_counter_ns() - start

    return loop


@case("copy.deepcopy")
def deep_copy(bed: Fixture) -> Loop:
    del bed
    value = {"name": "x", "parts": [{"key": number, "tags": ["a", "b"]} for number in range(8)], "limits": (1, [2, 3])}

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            copy.deepcopy(value)
        return perf_counter_ns() - start

    return loop


@case("logging.info")
def logging_call(bed: Fixture) -> Loop:
    del bed
    logger = logging.getLogger("bench")
    logger.setLevel(logging.INFO)
    logger.propagate = False
    handler = logging.StreamHandler(_Discarding())
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for number in range(turns):
            logger.info("request %d took %s", number, "long")
        return perf_counter_ns() - start

    return loop
