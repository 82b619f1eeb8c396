"""Garbage collection at a critical moment: while a context variable is set, or a context is copied."""

from __future__ import annotations

import pytest


def set_while_collecting(world):
    """Set variables while nearly every allocation collects an object whose finalizer enters a guard."""
    import contextvars
    import gc

    from democrai_sandbox import process_guard_context

    guard = process_guard_context(subject="demo")
    variables = [contextvars.ContextVar(f"number {number}") for number in range(50)]

    class Left:
        def __init__(self):
            self.itself = self

        def __del__(self):
            guard.run(int)
            for variable in variables[:5]:
                variable.set(object())

    def work():
        gc.set_threshold(3, 1, 1)
        for turn in range(2000):
            Left()
            variables[turn % 50].set([turn])
        return gc.isenabled()

    async def later():
        """Keep a guard alive while it is not awaited."""

    if world.args == [True]:
        return guard.run(work)
    held = guard.run(later)
    try:
        return work()
    finally:
        held.close()


@pytest.mark.every
@pytest.mark.parametrize("guarded", [True, False])
def test_a_finaliser_that_enters_a_guard_leaves_the_context_whole(case, guarded):
    """The process survives, and the collector is still enabled; CPython 3.11 alone would fail here."""
    assert case.run(set_while_collecting, guarded) is True


def copy_while_collecting(world):
    """Copy contexts while the allocation of the copy collects an object that is finalized under a guard."""
    import asyncio
    import contextvars
    import gc

    from democrai_sandbox.guard import live_states, process_guard_context

    guard = process_guard_context(subject="demo")
    variables = [contextvars.ContextVar(f"number {number}") for number in range(30)]

    class Left:
        def __init__(self):
            self.itself = self

        def __del__(self):
            guard.run(int)
            variables[0].set(object())

    async def wait():
        try:
            await asyncio.sleep(0)
        finally:
            variables[1].set(object())

    def leave_object():
        Left()

    def leave_coroutine():
        cycle = [guard.run(wait)]
        cycle.append(cycle)
        cycle[0].send(None)

    leave = {"object": leave_object, "coroutine": leave_coroutine}[world.args[0]]
    held = guard.run(wait)
    kept = []
    for turn in range(4000):
        gc.set_threshold(100_000)
        for variable in variables:
            variable.set(turn)
        leave()
        gc.set_threshold(1, 1, 1)
        kept.append(contextvars.copy_context())
        gc.set_threshold(100_000)
        del kept[:-5]
        assert all(context[variables[9]] <= turn for context in kept)
    held.close()
    del held
    kept.clear()
    gc.collect()
    return live_states()


@pytest.mark.every
@pytest.mark.parametrize("left", ["object", "coroutine"])
def test_a_context_copied_during_a_collection_is_whole(case, left):
    """The copy has the variables of its original, the process survives, and no guard remains."""
    assert case.run(copy_while_collecting, left) == 0
