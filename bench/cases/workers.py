"""Calls to a warm worker; not installed, to a thread of the loop's executor."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench.registry import SHORT_PARTS, Case, add, case

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

LIMIT = 2.0
_PLAIN = """
from democrai_sandbox import sdk

@sdk.method("echo")
def echo(value):
    return value

@sdk.method("items")
def items(count):
    yield from range(count)
"""
_LATER = _PLAIN.replace("def echo", "async def echo")
_ITEMS = 100


class _Host:
    """Host without services."""

    services = ()

    def decide(self, question: object) -> bool:
        del question
        return False

    def door(self, name: str, view: object, args: object) -> None:
        del name, view, args

    def output(self, label: str, stream: str, text: str) -> None:
        del label, stream, text

    def denied(self, label: str, denial: object) -> None:
        del label, denial

    def saw(self, label: str, question: object, *, allowed: bool, times: int) -> None:
        del label, question, allowed, times


def _worker(bed: Fixture, source: str, name: str) -> Any:
    from democrai_sandbox.runtime.worker.handle import WorkerHandle
    from democrai_sandbox.runtime.worker.process import WorkerSpec

    folder = bed.ground.temp / f"worker-{name}-{os.getpid()}"
    folder.mkdir()
    (folder / "main.py").write_text(source)
    spec = WorkerSpec("engine", name, str(folder), sys.executable, own_read=(str(folder),))
    return WorkerHandle(spec, _Host())


def _timed(events: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[object]]) -> Loop:
    """Await the call that many times, one after another."""

    async def turn(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            await call()
        return perf_counter_ns() - start

    return lambda turns: events.run_until_complete(turn(turns))


def _hopping(events: asyncio.AbstractEventLoop) -> Loop:
    return _timed(events, lambda: events.run_in_executor(None, int))


def plain_call(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()
    if not bed.guarded:
        return _hopping(events)
    worker = _worker(bed, _PLAIN, "plain")
    return _timed(events, lambda: worker.call("method", "echo", {"value": 1}))


# Idle, the executor is measured instead of a worker, so the row has no idle limit.
add(
    Case(
        "worker call (to an executor hop)",
        plain_call,
        limit=LIMIT,
        wrapped=False,
        reference=False,
        parts=SHORT_PARTS,
    )
)


@case("worker call of a coroutine (to an executor hop)", wrapped=False, reference=False)
def later_call(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()
    if not bed.guarded:
        return _hopping(events)
    worker = _worker(bed, _LATER, "later")
    return _timed(events, lambda: worker.call("method", "echo", {"value": 1}))


@case("worker call with 1 MiB (to an executor hop)", wrapped=False, reference=False)
def large_call(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()
    if not bed.guarded:
        return _hopping(events)
    worker = _worker(bed, _PLAIN, "large")
    data = bytes(1024 * 1024)
    return _timed(events, lambda: worker.call("method", "echo", {"value": data}))


@case("item of a worker's stream (to an executor hop)", wrapped=False, reference=False, per=_ITEMS)
def stream(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()

    async def hop() -> None:
        for _ in range(_ITEMS):
            await events.run_in_executor(None, int)

    if not bed.guarded:
        return _timed(events, hop)
    worker = _worker(bed, _PLAIN, "stream")

    async def consume() -> None:
        async for _ in worker.stream("method", "items", {"count": _ITEMS}):
            pass

    return _timed(events, consume)
