"""Tasks, threads and executors."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING

from bench.registry import case

if TYPE_CHECKING:
    from bench.fixture import Fixture
    from bench.registry import Loop


async def _switching(turns: int) -> int:
    """Let two tasks take turns, and return the nanoseconds of that many turns."""
    start = perf_counter_ns()
    await asyncio.gather(_yielding(turns // 2), _yielding(turns - turns // 2))
    return perf_counter_ns() - start


async def _yielding(turns: int) -> None:
    for _ in repeat(None, turns):
        await asyncio.sleep(0)


@case("asyncio task switch", limit=1.05, wrapped=False)
def task_switch(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()

    async def guarded(turns: int) -> int:
        with bed.guard():
            return await _switching(turns)

    return lambda turns: events.run_until_complete(guarded(turns))


@case("task switch under Guard.run", wrapped=False)
def task_switch_run(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()

    async def guarded(turns: int) -> int:
        elapsed: int = await bed.run(_switching, turns)
        return elapsed

    return lambda turns: events.run_until_complete(guarded(turns))


@case("thread start+join")
def thread_start(bed: Fixture) -> Loop:
    del bed

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            thread = threading.Thread(target=int)
            thread.start()
            thread.join()
        return perf_counter_ns() - start

    return loop


@case("executor submit+result")
def executor_submit(bed: Fixture) -> Loop:
    del bed
    # The host's pool, created and warmed before any guard: the usual case for guarded code.
    pool = ThreadPoolExecutor(1)
    pool.submit(int).result()

    def loop(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            pool.submit(int).result()
        return perf_counter_ns() - start

    return loop
