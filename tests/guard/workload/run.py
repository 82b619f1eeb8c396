"""Run the functions of a workload, one after another, inside one guard."""

from __future__ import annotations

import os
import traceback


def run_all(world):
    """Run every named function of a workload, each in a separate folder; unguarded without a guard."""
    path, names, guard = world.args
    space = world.load(path)
    if guard is None:
        return work(world, space, names)
    from democrai_sandbox import process_guard_context

    return process_guard_context(**guard).run(work, world, space, names)


def work(world, space, names):
    """Return each result: ok, the missing module, or the error with its traceback."""
    top = world.root
    seen = {}
    for name in names:
        world.root = os.path.join(top, name)
        os.makedirs(world.root)
        os.chdir(world.root)
        try:
            space[name](world)
        except ModuleNotFoundError as error:
            seen[name] = f"missing {error.name}"
        except BaseException as error:
            seen[name] = f"{type(error).__name__}: {error}\n{''.join(traceback.format_tb(error.__traceback__))}"
        else:
            seen[name] = "ok"
    return seen
