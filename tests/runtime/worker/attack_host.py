"""First file of a worker that runs one attack of tests/guard/attacks: it runs the host's part outside the guard.

Beside it lies `part.json`: the attack, its workspace, and the folder that holds the package `tests`. The subject finds
the workspace in the module `attack_ground`. The file `left` marks that it has left its guard; `told.json` becomes the
verdict.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
import threading
import time
from functools import partial
from importlib import import_module
from os import rename
from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))


def exists(name, listdir=os.listdir):
    """Return whether a file lies beside this one, without functions that the subject can have replaced.

    An attack may hold every descriptor for a moment; the file is then looked for again.
    """
    try:
        return name in listdir(HERE)
    except OSError:
        return False


def load(file, name, root):
    """Return the host's copy of an attack and of its kit; the subject loads its own."""
    sys.path.insert(0, root)
    kit = import_module("tests.guard.attacks.kit")
    import_module(f"tests.guard.attacks.families.{file}")
    sys.path.remove(root)
    for loaded in [loaded for loaded in sys.modules if loaded.partition(".")[0] == "tests"]:
        del sys.modules[loaded]
    return kit, kit.REGISTRY.attacks[file][name]


def guard_of(ground):
    """Return a factory of the guard in which the attacks of tests/guard run."""
    from democrai_sandbox import process_guard_context

    access = [{"resource_type": "filesystem", "operation": "read", "target": ground.readonly}]
    return partial(
        process_guard_context, subject="demo", subject_kind="engine", allowed_paths=[ground.inside], access=access
    )


def describe(ground):
    """Return the verdict: the attack escaped, was denied, or failed."""
    taken = (getattr(ground.held, "result", None), *ground.loot)
    loot = [item.decode("latin-1") if isinstance(item, bytes | bytearray) else item for item in taken]
    proof = any(item is True or (isinstance(item, str) and ground.SECRET in item) for item in loot)
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


class Host:
    """The host's part of one attack, in the process of the worker."""

    def __init__(self, attack, ground):
        self.attack = attack
        self.ground = ground

    def around(self, importing):
        """Return an import of the subject that first runs the host's first part, unless that needs a loop."""

        def imported(*args):
            self.ground.held.make = guard_of(self.ground)
            self.ground.held.ready = threading.Event()
            if not inspect.iscoroutinefunction(self.attack.act):
                self.begin(self.attack.prepare and self.attack.prepare(self.ground))
            return importing(*args)

        return imported

    def begin(self, _=None):
        """Record the state of the workspace, and let the subject begin."""
        if not self.attack.host_writes:
            with open(f"{HERE}/before", "w") as file:
                file.write(repr(self.ground.snapshot()))
        self.ground.held.ready.set()

    async def begin_on_the_loop(self):
        """Run the host's first part inside a running loop."""
        await self.run_part(self.attack.prepare)
        self.begin()

    async def run_part(self, part):
        """Run a part that may be a coroutine."""
        result = part(self.ground) if part is not None else None
        return await result if inspect.isawaitable(result) else result

    def finish(self, loop):
        """Run the host's last part once the subject has left its guard, and write the verdict."""
        while not exists("left"):
            time.sleep(0.005)
        if loop is None:
            self.ground.attempt(lambda: self.attack.after and self.attack.after(self.ground))
        else:
            last = asyncio.run_coroutine_threadsafe(self.run_part(self.attack.after), loop)
            self.ground.attempt(lambda: last.result(60))
        try:
            told = describe(self.ground)
        except BaseException as error:
            told = ["the host failed", repr(error)]
        with open(f"{HERE}/told.part", "w") as file:
            json.dump(told, file)
        rename(f"{HERE}/told.part", f"{HERE}/told.json")


def main():
    packages, environment, lane, control, memory = sys.argv[1:]
    del sys.argv[1:]
    with open(f"{HERE}/part.json") as file:
        part = json.load(file)
    sys.path.insert(0, packages)
    bootstrap = import_module("democrai_sandbox.runtime.worker.bootstrap")
    sys.path.remove(packages)
    bootstrap.find_packages(packages)
    bootstrap.use_environment(environment)
    kit, attack = load(part["file"], part["name"], part["root"])
    ground = kit.Ground(part["base"])
    os.chdir(ground.neutral)
    sys.path.append(ground.site)
    sys.modules["attack_ground"] = shared = ModuleType("attack_ground")
    shared.ground = ground
    from democrai_sandbox.runtime.worker import main as worker

    host = Host(attack, ground)
    worker._imported = host.around(worker._imported)
    serve, doors = worker.settle(int(lane), int(control), int(memory), environment)
    loop = doors[0] if inspect.iscoroutinefunction(attack.act) else None
    if loop is not None:
        host.beginning = loop.create_task(host.begin_on_the_loop())
    threading.Thread(target=host.finish, args=(loop,), daemon=True).start()
    serve(*doors)


if __name__ == "__main__":
    main()
