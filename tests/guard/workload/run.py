"""Run the functions of a workload, one after another, in one process."""

from __future__ import annotations

import os
import traceback


def run_all(world):
    """Run every named function of a workload inside one guard, each in a folder of its own."""
    space = world.load(world.args[0])
    top = world.root
    seen = {}
    for name in world.args[1]:
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
