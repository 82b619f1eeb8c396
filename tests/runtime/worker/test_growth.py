"""Ten thousand calls leave nothing behind, neither in the worker nor in its host."""

from __future__ import annotations

import gc
import os
import sys

import pytest

from tests.services.forks import RuntimeCase as Case

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import Host, make_worker, run, who


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)


BUSY = """
from democrai_sandbox import sdk
from democrai_sandbox.runtime import doors

@sdk.method("add")
def add(a, raw):
    return {"sum": a + 1, "raw": raw}

@sdk.method("ask")
def ask(path):
    doors.call("echo", 1)
    try:
        open(path)
    except PermissionError:
        return "denied"

@sdk.method("count")
def count(to):
    yield from range(to)
"""
LATER = BUSY.replace("def add", "async def add")


def usage(pid):
    """Return the resident pages' bytes, and the descriptors, of a process."""
    with open(f"/proc/{pid}/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(f"/proc/{pid}/fd"))


def busy_story(world):
    source, name, calls = world.args
    host = Host(echo=lambda value: value)
    worker, _ = make_worker(world, source, name=name, host=host)

    async def some(times):
        for number in range(times):
            caller = who(f"user{number}", "", f"session{number}")
            assert (await worker.call("method", "add", {"a": number, "raw": b"x" * 100}, caller=caller))[
                "sum"
            ] == number + 1
            if number % 20 == 0:
                assert await worker.call("method", "ask", {"path": world.secret}, caller=caller) == "denied"
                assert [item async for item in worker.stream("method", "count", {"to": 20}, caller=caller)] == list(
                    range(20)
                )
        host.questions.clear()
        host.denials.clear()
        host.views.clear()
        gc.collect()

    async def story():
        await worker.start()
        await some(1500)
        before = usage(worker.pid), usage(os.getpid())
        await some(calls)
        after = usage(worker.pid), usage(os.getpid())
        told = {"before": before, "after": after, "starts": worker.starts, "in flight": worker.in_flight}
        await worker.stop()
        told["left"] = usage(os.getpid())[1]
        return told

    return run(story)


@pytest.mark.parametrize(("source", "name", "calls"), [(BUSY, "plain", 10_000), (LATER, "later", 3_000)])
def test_ten_thousand_calls_do_not_grow_anything(case, source, name, calls):
    """Memory and descriptors of both processes; each call for another user, with questions and streams in between."""
    told = case.run(busy_story, source, name, calls)
    for before, after in zip(told["before"], told["after"], strict=True):
        assert after[0] - before[0] < 3_000_000, told
        assert after[1] == before[1], told
    assert (told["starts"], told["in flight"]) == (1, 0)
    assert told["left"] <= told["before"][1][1] - 4
