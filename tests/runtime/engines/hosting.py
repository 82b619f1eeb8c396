"""A complete host with engines, for the child process of a test. Loaded there by its path."""

from __future__ import annotations

import asyncio
import os
import runpy
import shutil
from datetime import UTC, datetime

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def open_runtime(base, **more):
    """Return the access service and the runtime, as a host makes them."""
    from democrai_sandbox.access import Access, AccessSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.runtime import Runtime

    state = os.path.join(base, "state")
    folders = {f"{kind}s_path": f"{base}/{kind}s" for kind in ("module", "engine", "extractor")}
    for folder in (state, *folders.values()):
        os.makedirs(folder, exist_ok=True)
    shutil.copyfile(os.environ["PREPARED_DATABASE"], os.path.join(state, "access.db"))
    settings = AccessSettings(database=f"sqlite:///{state}/access.db", key_file=f"{state}/keys", poll_seconds=0.1)
    access = Access(settings, GuardSurroundings())
    runtime = Runtime(
        RuntimeSettings(data_dir=f"{base}/data", **{**folders, "isolation": {"default": "in_process"}, **more}),
        access,
        protected_paths=[state],
    )
    for installed in (runtime.engines, runtime.extractors):
        installed._look_seconds = 0.0
    return access, runtime


def told(error):
    """Return an error as plain data."""
    chain = [str(subject) for subject in getattr(error, "subject_chain", ())]
    places = [problem.pointer for problem in getattr(error, "problems", ())]
    found = {"error": type(error).__name__, "text": str(error), "code": getattr(error, "code", "")}
    return {**found, "chain": chain, "places": places}


async def outcome(awaitable):
    """Return an outcome as plain data."""
    try:
        return await awaitable
    except Exception as error:
        return told(error)


def serve(base, story, asking=False, **more):
    """Run a story, an async function of the runtime, in a serving host."""
    if not asking:
        installs = os.path.join(os.path.dirname(__file__), os.pardir, "installs", "hosting.py")
        runpy.run_path(installs)["know_pip"]()
    access, runtime = open_runtime(base, **more)

    async def work():
        async with runtime:
            return await story(runtime)

    with access:
        return asyncio.run(work())
