"""Action of a module; not installed, the same function is called as a task of the same loop."""

from __future__ import annotations

import asyncio
import json
import os
from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from bench.registry import SHORT_PARTS, case

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from bench.fixture import Fixture
    from bench.registry import Loop

LIMIT = 1.3
_SOURCE = """
from democrai_sandbox import sdk

@sdk.action("nothing")
async def nothing():
    pass

@sdk.action("plain")
def plain():
    pass
"""


async def _nothing() -> None:
    pass


def _modules(bed: Fixture) -> tuple[Any, Any]:
    """Load one module like a runtime; return the module runtime, and a caller."""
    from democrai_sandbox.access import Caller
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.runtime.extensions import importer
    from democrai_sandbox.runtime.extensions.registry import discover
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.modules import ModuleRuntime

    base = bed.ground.temp / f"modules-{os.getpid()}"
    if not base.exists():
        (base / "modules" / "demo").mkdir(parents=True)
        (base / "modules" / "demo" / "manifest.json").write_text(json.dumps({"name": "demo"}))
        (base / "modules" / "demo" / "module.py").write_text(_SOURCE)
    importer.preload()
    declarations = importer.Declarations()
    sdk_services.install({"declare": declarations.declare})
    here = {"default": "in_process"}
    settings = RuntimeSettings(modules_path=str(base / "modules"), data_dir=str(base / "data"), isolation=here)
    modules = ModuleRuntime(settings, discover(settings), declarations)
    modules.load_all(Caller())
    return modules, Caller(user_id="uma", session_key="monday")


def _timed(events: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[object]]) -> Loop:
    async def turn(turns: int) -> int:
        start = perf_counter_ns()
        for _ in repeat(None, turns):
            await call()
        return perf_counter_ns() - start

    return lambda turns: events.run_until_complete(turn(turns))


def _in_context(bed: Fixture) -> Callable[[], Awaitable[None]]:
    """Enter and leave a guard around the function, like the reference product's runtime for a module."""

    async def call() -> None:
        with bed.new_guard():
            await _nothing()

    return call


@case("module action (to a task of the same loop)", limit=LIMIT, wrapped=False, parts=SHORT_PARTS)
def module_action(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()
    if not bed.guarded:
        return _timed(events, lambda: events.create_task(_nothing()))
    if bed.is_reference:
        return _timed(events, _in_context(bed))
    modules, uma = _modules(bed)
    return _timed(events, lambda: modules.action("demo", "nothing", {}, uma))


@case("module action in a thread (to an executor hop)", wrapped=False, reference=False)
def module_thread(bed: Fixture) -> Loop:
    events = asyncio.new_event_loop()
    if not bed.guarded:
        return _timed(events, lambda: events.run_in_executor(None, int))
    modules, uma = _modules(bed)
    return _timed(events, lambda: modules.action("demo", "plain", {}, uma))
