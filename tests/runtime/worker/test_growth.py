"""Many calls leave nothing behind, neither in the worker nor in its host."""

from __future__ import annotations

import gc
import os
import sys

from tests.services.rows import rows

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import Host, make_worker, run, who

BUSY = """
from democrai_sandbox import sdk
from democrai_sandbox.runtime import sdk_services
import gc, sys

@sdk.method("add")
def add(a, raw):
    return {"sum": a + 1, "raw": raw}

@sdk.method("ask")
def ask(path):
    sdk_services.call("echo", 1)
    try:
        open(path)
    except PermissionError:
        return "denied"

@sdk.method("count")
def count(to):
    yield from range(to)

@sdk.method("blocks")
def blocks():
    gc.collect()
    return sys.getallocatedblocks()
"""
LATER = BUSY.replace("def add", "async def add")
CALLS = 1024
"""As many as a worker caches guards for users, so that the cache is full."""


def usage(pid):
    """Return the resident bytes, and the number of descriptors, of a process."""
    with open(f"/proc/{pid}/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return resident, len(os.listdir(f"/proc/{pid}/fd"))


def busy_story(world):
    source, name = world.args
    host = Host(echo=lambda value: value)
    worker, _ = make_worker(world, source, name=name, host=host)

    async def some(begin, end):
        for number in range(begin, end):
            caller = who(f"user{number}", "", f"session{number}")
            came = await worker.call("method", "add", {"a": number, "raw": b"x" * 100}, caller=caller)
            assert came["sum"] == number + 1
            if number % 20 == 0:
                assert await worker.call("method", "ask", {"path": world.secret}, caller=caller) == "denied"
                assert [item async for item in worker.stream("method", "count", {"to": 20}, caller=caller)] == [
                    *range(20)
                ]
        host.questions.clear()
        host.denials.clear()
        host.views.clear()

    async def measured():
        blocks = await worker.call("method", "blocks")
        gc.collect()
        return (*usage(worker.pid), blocks), (*usage(os.getpid()), sys.getallocatedblocks())

    async def story():
        await worker.start()
        for _ in range(520):  # the guard keeps the last 512 denials
            await worker.call("method", "ask", {"path": world.secret})
        await some(0, 1100)
        before = await measured()
        await some(1100, 1100 + CALLS)
        told = {"before": before, "after": await measured(), "starts": worker.starts, "in flight": worker.in_flight}
        await worker.stop()
        told["left"] = usage(os.getpid())[1]
        return told

    return run(story)


@rows(("source", "name"), [(BUSY, "plain"), (LATER, "later")])
def test_many_calls_do_not_grow_anything(case, source, name):
    """Objects, memory and descriptors stay constant, with another user, questions and streams in each call."""
    told = case.run(busy_story, source, name)
    for before, after in zip(told["before"], told["after"], strict=True):
        memory, descriptors, blocks = (now - then for now, then in zip(after, before, strict=True))
        assert memory < 3_000_000, told
        assert descriptors == 0, told
        assert blocks < CALLS / 2, told  # one object per call would be all of them; caches fill by about 200
    assert (told["starts"], told["in flight"]) == (1, 0)
    assert told["left"] <= told["before"][1][1] - 4
