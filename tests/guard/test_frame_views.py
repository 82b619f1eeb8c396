"""Frames: guarded code sees the variables of its own, and not those of the runtime that called it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.guard.harness import Case


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)


def walking(world):
    from democrai_sandbox.guard import current_guard, own_code, process_guard_context
    from democrai_sandbox.runtime.outcomes import capture, capture_async

    source = """
import asyncio, sys, traceback

def sync(world):
    mine = 1
    frame, found = sys._getframe(), {}
    while frame is not None:
        try:
            found[frame.f_code.co_name] = sorted(frame.f_locals)[:1]
        except PermissionError as denial:
            found[frame.f_code.co_name] = str(denial)
        frame = frame.f_back
    return found

async def later(world):
    frame = asyncio.current_task().get_coro().cr_frame
    try:
        return sorted(frame.f_locals)
    except PermissionError as denial:
        return str(denial)

def ordinary(world):
    def inner():
        value = 3
        return locals(), sys._getframe().f_locals["value"], sys._getframe(1).f_code.co_name
    return [inner()[1], inner()[2], len(traceback.format_stack()) > 2]

def clears(world):
    frame = asyncio.current_task().get_coro().cr_frame
    try:
        frame.clear()
    except PermissionError as denial:
        return str(denial)
    except RuntimeError:
        return "running"
"""
    names = {}

    def define():
        code = compile(source, "/srv/modules/demo/module.py", "exec")
        own_code(code)
        exec(code, names)

    guard = lambda: process_guard_context(subject="demo")
    guard().run(define)

    async def host(secret):
        return await guard().run(capture_async, names["later"], world)

    async def clearing(secret):
        async def run():
            return names["clears"](world)

        return await guard().run(run)

    secret = "of the host"
    sync = guard().run(capture, names["sync"], world)[1]
    return [
        sync,
        asyncio.run(host(secret))[1],
        guard().run(names["ordinary"], world),
        sys._getframe().f_locals["secret"],
        asyncio.run(clearing(secret)),
    ]


def test_the_variables_of_the_runtime_and_of_the_host_are_not_for_guarded_code(case):
    found, coroutine, ordinary, own, cleared = case.run(walking)
    denied = "sandbox_guard_denied:f_locals"
    assert found == {
        "sync": ["found"],
        "capture": denied,
        "walking": denied,
        "main": denied,
        "<module>": denied,
    }
    assert coroutine == denied
    assert ordinary == [3, "ordinary", True]
    assert own == "of the host"
    assert cleared == "sandbox_guard_denied:frame.clear"
