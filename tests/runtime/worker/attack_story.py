"""A subject that runs one attack of tests/guard/attacks in a worker, and its host."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))
from worker_kit import make_worker, run, until, verdict

HOST = Path(__file__).with_name("attack_host.py")

SUBJECT = """
from democrai_sandbox import sdk
import os, sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, FOLDER)


def find(file, name):
    from importlib import import_module

    kit = import_module("tests.guard.attacks.kit")
    import_module("tests.guard.attacks.families." + file)
    return kit.REGISTRY.attacks[file][name].act

"""

PLAIN = """

@sdk.method("play")
def play(file, name):
    from attack_ground import ground

    try:
        ground.held.result = find(file, name)(ground)
    except BaseException as error:
        ground.errors.append(error)
"""

ON_A_LOOP = """

@sdk.method("play")
async def play(file, name):
    import asyncio
    from attack_ground import ground

    while not ground.held.ready.is_set():
        await asyncio.sleep(0.01)
    try:
        ground.held.result = await find(file, name)(ground)
    except BaseException as error:
        ground.errors.append(error)
"""


def play_story(world):
    """Run the attacks of one file, each in a separate worker."""
    from democrai_sandbox.runtime.worker import process

    file, grounds, awaiting, attacks = world.args
    package = os.path.join(world.base, "subjects", "demo", "tests", "guard")
    shutil.copytree(attacks, os.path.join(package, "attacks"), ignore=shutil.ignore_patterns("__pycache__", "test_*"))

    async def play(name, base):
        host = Path(f"{base}.host")
        host.mkdir()
        Path(base, "tmp").mkdir(exist_ok=True)
        part = {"file": file, "name": name, "base": base, "root": str(Path(attacks).parents[2])}
        (host / "part.json").write_text(json.dumps(part))
        process._BOOTSTRAP = shutil.copy(HOST, host)
        access = [{"resource_type": "filesystem", "operation": "read", "target": f"{base}/readonly"}]
        given = {"access": json.dumps(access), "protected": (f"{base}/inside/holder/vault",), "call_timeout": 60.0}
        given["env"] = (("TMPDIR", f"{base}/tmp"),)
        source = SUBJECT + (ON_A_LOOP if name in awaiting else PLAIN)
        worker, written = make_worker(world, source, own_write=(f"{base}/inside",), **given)
        try:
            played = await verdict(worker.call("method", "play", {"file": file, "name": name}))
            if played is not None:
                return played
            (host / "left").touch()
            told = host / "told.json"
            await until(lambda: told.exists() or worker.pid is None, seconds=120)
            return json.loads(told.read_text()) if told.exists() else ["ended", written.text("stderr")]
        finally:
            await worker.stop()

    async def story():
        return {name: await play(name, base) for name, base in grounds.items()}

    return run(story, seconds=280)
