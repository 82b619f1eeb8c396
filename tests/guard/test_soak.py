"""Entering and leaving guards a hundred thousand times, in threads and tasks, leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import tracemalloc

import pytest


def resident():
    """Return the resident memory of this process in KiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def fill(world, guard):
    """Fill the bounded store of denials."""
    for _ in range(2000):
        guard.run(world.can_read)


def soak(world):
    """Run `rounds` activations in four threads and two hundred tasks."""
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.guard import live_states

    write(world.inside("f"))
    shared = process_guard_context(subject="demo", allowed_paths=[world.root], user_id="u")
    wrong = []

    def guard():
        return process_guard_context(subject="demo", allowed_paths=[world.root], user_id="u")

    def other():
        return process_guard_context(subject="other", allowed_paths=[world.out("o")])

    def once(number):
        with guard():
            if number % 10 == 0:
                with other():
                    pass
            if number % 50 == 0:
                if world.can_read() != "FilesystemDenied" or world.can_read(world.inside("f")) != "ok":
                    wrong.append("thread")
            if number % 97 == 0:
                process_guard_context(subject="fresh", allowed_paths=[world.root]).run(int)

    def thread(rounds):
        for number in range(rounds):
            once(number)
            if number % 3 == 0:
                shared.run(int)

    async def step():
        await asyncio.sleep(0)

    async def task(rounds):
        for number in range(rounds):
            async with guard():
                await asyncio.sleep(0)
                if number % 20 == 0 and world.can_read() != "FilesystemDenied":
                    wrong.append("task")
                if number % 20 == 0:
                    child = asyncio.create_task(step())
                    await child
            if number % 4 == 0:
                await shared.run(step)
            if number % 20 == 0 and world.can_read() != "ok":
                wrong.append("task outside")

    async def tasks(rounds):
        await asyncio.gather(*(task(rounds) for _ in range(200)))

    def everything(rounds):
        threads = [threading.Thread(target=thread, args=(rounds // 8,)) for _ in range(4)]
        for each in threads:
            each.start()
        asyncio.run(tasks(rounds // 2 // 200))
        for each in threads:
            each.join()

    rounds = world.args[0]
    fill(world, shared)
    everything(rounds // 10)  # caches, free lists and arenas settle
    gc.collect()
    before = {
        "objects": len(gc.get_objects()),
        "resident": resident(),
        "states": live_states(),
        "threads": threading.active_count(),
    }
    everything(rounds)
    gc.collect()
    middle = {"objects": len(gc.get_objects()), "resident": resident()}
    tracemalloc.start(5)
    fill(world, shared)
    first = tracemalloc.take_snapshot()
    everything(rounds // 20)
    fill(world, shared)
    gc.collect()
    second = tracemalloc.take_snapshot()
    tracemalloc.stop()
    kept = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, "<frozen importlib._bootstrap>")]
    growth = second.filter_traces(kept).compare_to(first.filter_traces(kept), "filename")
    return {
        "wrong": wrong[:5],
        "states": [before["states"], live_states()],
        "objects": middle["objects"] - before["objects"],
        "resident": middle["resident"] - before["resident"],
        "traced": sum(one.size_diff for one in growth),
        "largest": [str(one) for one in sorted(growth, key=lambda one: -one.size_diff)[:3]],
        "threads": threading.active_count() - before["threads"],
        "after": [world.can_read(), str(__import__("democrai_sandbox").current_guard())],
    }


def references(world):
    """Objects passed through guards keep their reference counts, also through denials and failures."""
    from democrai_sandbox import process_guard_context

    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    marker = object()
    path = world.secret + ""
    policy_path = os.path.join(world.root, "f")
    write(policy_path)

    def fail(thing):
        raise ValueError(thing)

    def denied(thing):
        open(path)

    def fine(thing):
        with open(policy_path) as file:
            return os.stat(policy_path), os.listdir(world.root), file.read()

    def steps(thing):
        yield thing
        yield thing

    async def waits(thing):
        await asyncio.sleep(0)
        return thing

    def cycle():
        for function in (fail, denied, fine):
            try:
                guard.run(function, marker)
            except (ValueError, PermissionError):
                pass
        list(guard.run(steps, marker))
        guard.run(steps, marker).close()
        abandoned = guard.run(steps, marker)
        next(abandoned)
        del abandoned
        thread = guard.run(lambda: threading.Thread(target=fine, args=(marker,)))
        thread.start()
        thread.join()
        caught(guard.run, None)
        caught(guard.run)
        caught(process_guard_context, subject="")

    async def async_cycle():
        await guard.run(waits, marker)
        coroutine = guard.run(waits, marker)
        coroutine.close()
        asyncio.get_running_loop().call_soon(fine, marker)
        await asyncio.sleep(0)

    def measure():
        gc.collect()
        return [sys.getrefcount(thing) for thing in (marker, path, policy_path, guard, fine, world.root, world)]

    for _ in range(50):
        cycle()
    asyncio.run(async_cycle())
    before = measure()
    for _ in range(300):
        cycle()
    for _ in range(20):
        asyncio.run(async_cycle())
    after = measure()
    return [b - a for a, b in zip(before, after, strict=True)]


@pytest.mark.slow
class TestSoak:
    def test_a_hundred_thousand_activations_leave_nothing(self, case):
        """No live state, growing memory, thread or guard remains after 4 threads and 200 tasks."""
        seen = case.run(soak, 100_000, timeout=200)
        assert seen["wrong"] == []
        assert seen["states"][1] == seen["states"][0]
        assert seen["threads"] == 0
        assert seen["after"] == ["ok", "None"]
        assert abs(seen["objects"]) < 2000, seen  # a leak would show as tens of thousands
        assert seen["resident"] < 4096, seen
        assert seen["traced"] < 64 * 1024, seen

    def test_no_reference_is_lost_or_kept(self, case):
        """Reference counts of objects that pass through guards are the same after hundreds of rounds."""
        assert max(map(abs, case.run(references))) <= 3
