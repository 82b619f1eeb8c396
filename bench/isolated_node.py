"""A node whose modules run in confined workers: ``isolated_node.py WHAT FOLDER MODULES``.

It reads numbers of turns, one per line. It is a separate process, because the guard of a measured process is already
configured.
"""

from __future__ import annotations

import asyncio
import json
import sys
from itertools import count, repeat
from pathlib import Path
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any

from democrai_sandbox.access import Access, AccessSettings, Caller
from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.kernel import FlowLog
from democrai_sandbox.kernel.landlock.rights import landlock_support
from democrai_sandbox.kernel.spawn import SpawnServer
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime import Runtime, RuntimeSettings
from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving
from democrai_sandbox.runtime.worker.process import template_command

_MODULE = """
from democrai_sandbox import sdk

@sdk.action("read")
def read(path=""):
    return open(path).read() if path else ""
"""
_BETWEEN = 0.08
"""Seconds between two starts."""
UMA = Caller(user_id="uma", session_key="monday")
ADA = Caller(user_id="ada", role="super")


class Node:
    """A runtime with a spawn server and its template process, and some small modules."""

    def __init__(self, base: Path, modules: int) -> None:
        """Create everything; ``start`` starts the modules."""
        self.base = base
        self._files = count()
        for number in range(modules):
            folder = base / "modules" / f"m{number}"
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text(json.dumps({"name": f"m{number}"}))
            (folder / "module.py").write_text(_MODULE)
        state = base / "state"
        state.mkdir()
        self._server = SpawnServer.start(template=template_command(()))
        abi, flow = landlock_support().abi, FlowLog(enabled=False)
        kernel: Any = SimpleNamespace(spawn=self._server, egress=None, abi=abi, flow=flow, unfiltered="")
        self.access = Access(AccessSettings(f"sqlite:///{state}/access.db", f"{state}/keys"), GuardSurroundings())
        settings = RuntimeSettings(modules_path=str(base / "modules"), data_dir=str(base / "data"))
        self.runtime = Runtime(settings, self.access, protected_paths=[str(state)], kernel=kernel)

    async def read(self, module: str = "m0", path: str = "") -> object:
        """Call the action of a module."""
        return await self.runtime.modules.action(module, "read", {"path": path}, UMA)

    async def first_answers(self, turns: int) -> int:
        """Call a module whose worker has been stopped, with no process left, before each call.

        Single starts, as on a node in use: the template has prepared the next worker.
        """
        spent = 0
        for _ in repeat(None, turns):
            worker = self.runtime.modules.loaded("m0").worker
            assert worker is not None
            worker.rest()
            await asyncio.wait(worker._retiring)  # its end is not measured
            await asyncio.sleep(_BETWEEN)
            start = perf_counter_ns()
            await self.read()
            spent += perf_counter_ns() - start
        return spent

    async def approvals(self, turns: int) -> int:
        """Approve a file, and call the module until it can read it."""
        spent = 0
        for _ in repeat(None, turns):
            path = self.base / f"file{next(self._files)}"
            path.write_text("x")
            await self.read()
            start = perf_counter_ns()
            await asyncio.to_thread(self._approve, str(path))
            while True:
                try:
                    await self.read(path=str(path))
                    break
                except (SandboxDenied, PermissionError):
                    await asyncio.sleep(0.001)
            spent += perf_counter_ns() - start
        return spent

    def _approve(self, path: str) -> None:
        module = Subject.parse("module:m0")
        with serving(ADA):
            self.access.administration.decide_unasked(
                module, resource_type="filesystem", operation="read", target=path, effect="approval"
            )

    def stop(self) -> None:
        """End the processes."""
        self._server.stop()


async def main() -> None:
    """Measure what the arguments name."""
    what, base, modules = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    node = Node(base, modules)
    with node.access:
        begin = perf_counter_ns()
        async with node.runtime:
            await node.read(f"m{modules - 1}")
            ready = perf_counter_ns() - begin
            for line in map(int, sys.stdin):
                print(ready if what == "ready" else await getattr(node, what)(line), flush=True)
    node.stop()


if __name__ == "__main__":
    asyncio.run(main())
