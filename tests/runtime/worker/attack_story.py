"""A subject that plays one attack of tests/guard/attacks in a worker, and the host that has it played."""

from __future__ import annotations

import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import make_worker, run, verdict

SUBJECT = """
from democrai_sandbox import sdk
import os, sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)


@sdk.method("play")
def play(file, name, base):
    from importlib import import_module

    kit = import_module("tests.guard.attacks.kit")
    import_module("tests.guard.attacks." + file)
    ground = kit.Ground(base)
    from democrai_sandbox import process_guard_context

    ground.held.make = process_guard_context
    act = kit.REGISTRY.attacks[file][name].act
    if act.__code__.co_flags & 0x80:
        import asyncio

        ground.attempt(lambda: asyncio.run(act(ground)))
    else:
        ground.attempt(lambda: act(ground))
    return describe(ground)


def describe(ground):
    loot = [item.decode("latin-1") if isinstance(item, (bytes, bytearray)) else item for item in ground.loot]
    proof = any(item is True or isinstance(item, str) and ground.SECRET in item for item in loot)
    pending, seen, denial = list(ground.errors), [], None
    while pending and denial is None:
        error = pending.pop(0)
        if error in seen:
            continue
        seen.append(error)
        if type(error).__module__.startswith("democrai_sandbox"):
            denial = error
        pending += [other for other in (error.__cause__, error.__context__) if other is not None]
        pending += getattr(error, "exceptions", ())
    error = denial or (ground.errors[0] if ground.errors else None)
    return {
        "verdict": "escaped" if proof else "denied" if denial else "failed",
        "error_type": type(error).__name__ if error is not None else None,
        "error_text": str(error)[:400],
        "code": str(error)[:400] if denial is not None else None,
    }
"""


def play_story(world):
    file, grounds, attacks = world.args
    package = os.path.join(world.base, "subjects", "demo", "tests", "guard")
    shutil.copytree(attacks, os.path.join(package, "attacks"), ignore=shutil.ignore_patterns("__pycache__", "test_*"))

    async def play(name, base):
        access = [{"resource_type": "filesystem", "operation": "read", "target": f"{base}/readonly"}]
        given = {"access": json.dumps(access), "protected": (f"{base}/inside/holder/vault",), "call_timeout": 60.0}
        worker, _ = make_worker(world, SUBJECT, own_write=(f"{base}/inside",), **given)
        try:
            return await verdict(worker.call("method", "play", {"file": file, "name": name, "base": base}))
        finally:
            await worker.stop()

    async def story():
        return {name: await play(name, base) for name, base in grounds.items()}

    return run(story, seconds=110)
