"""A host with a kernel layer, set up by test bodies in a separate process. Loaded there by its path."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

HOUSE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "host_setup.py")


class Lab:
    """A house whose runtime has a spawn server, and an egress control if one is given."""

    def __init__(self, world, given=None, **kernel):
        self.kernel = given or layer(**kernel)
        self.parts = world.load(HOUSE)
        self.house = self.parts["House"](world)
        self.caller = self.parts["caller"]

    def serve(self, story, *, models=None, prepare=None, **settings):
        """Run a coroutine function while the runtime serves, and return its result.

        ``prepare`` takes the runtime before it starts.
        """
        from democrai_sandbox.access import Access, AccessSettings
        from democrai_sandbox.manifests import Limits
        from democrai_sandbox.runtime import Runtime, RuntimeSettings
        from democrai_sandbox.runtime.access_environment import GuardSurroundings

        house = self.house
        settings["isolation"] = {"default": "in_process", **settings.get("isolation", {})}
        if "limits" in settings:
            settings["limits"] = Limits(**settings["limits"])
        database = self.parts["database"](house.state)
        database = AccessSettings(database=database, key_file=f"{house.state}/keys", poll_seconds=0.1)
        places = {f"{kind}s_path": folder for kind, folder in house.folders.items()}
        settings = {"call_timeout": 20.0, **settings}
        given = RuntimeSettings(data_dir=os.path.join(house.base, "data"), **places, **settings)

        async def serve():
            async with house.runtime:
                assert not house.problems(), house.problems()
                return await story()

        house.access = Access(database, GuardSurroundings())
        house.runtime = Runtime(given, house.access, models=models, protected_paths=[house.state], kernel=self.kernel)
        if prepare is not None:
            prepare(house.runtime)
        with house.access:
            try:
                return asyncio.run(serve())
            finally:
                house.web.stop()
                self._stop()

    def _stop(self):
        if hasattr(self.kernel, "stop"):
            self.kernel.stop()
        elif self.kernel is not None:
            self.kernel.spawn.stop()

    def action(self, module, action, /, **params):
        """Call an action; return its value, or the class and text of the error."""
        return told(self.house.runtime.modules.action(module, action, params, self.caller()))


def layer(*, on=True, abi=None, egress=None, template=True):
    """Return a kernel layer for the runtimes, with a real spawn server and its template process."""
    from democrai_sandbox.kernel import FlowLog
    from democrai_sandbox.kernel.landlock.rights import landlock_support
    from democrai_sandbox.kernel.spawn import SpawnServer
    from democrai_sandbox.runtime.worker.process import template_command

    if not on:
        return None
    found = landlock_support().abi if abi is None else abi
    packages = template if isinstance(template, list) else ()
    server = SpawnServer.start(template=template_command(packages) if template else ())
    return SimpleNamespace(spawn=server, egress=egress, abi=found, flow=FlowLog(enabled=False), unfiltered="")


def memory_holds(pid, text):
    """Return whether the private memory of a process contains a text."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps:
            span, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            first, last = (int(part, 16) for part in span.split("-"))
            memory.seek(first)
            if text in memory.read(last - first):
                return True
    return False


def stat_of(pid):
    """Return the name, the state and the parent of a process; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            front, _, rest = file.read().rpartition(")")
    except OSError:
        return None
    state, parent = rest.split()[:2]
    return {"name": front.partition("(")[2], "state": state, "parent": int(parent)}


async def told(work):
    """Return the outcome of some work: its value, or the class and text of the error."""
    try:
        return await asyncio.wait_for(work, 60)
    except Exception as error:
        return [getattr(error, "kind", "") or type(error).__name__, str(error)]


def entry(operation, target):
    """Return an entry of an access list."""
    kind = "network" if operation in {"connect", "receive", "send"} else "filesystem"
    return {"resource_type": kind, "operation": operation, "target": str(target)}
