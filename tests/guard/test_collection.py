"""Garbage that is collected at a bad moment: in the middle of setting a variable of the context."""

from __future__ import annotations

import pytest


def set_while_collecting(world):
    """Set variables while nearly every allocation collects what a finaliser then enters a guard for."""
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
        """Keeps a guard alive while it is not awaited."""

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
    """The process lives, and the collector is on as it was; CPython 3.11 by itself would lose its footing here."""
    assert case.run(set_while_collecting, guarded) is True
