"""A process that is killed does not take the record of what it ran with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from democrai_sandbox.runtime.store import TaskState, open_runtime_store
from democrai_sandbox.runtime.tasks import TaskRuntime, TaskSettings
from tests.services.postgres import postgres_server

PROGRAM = """
import asyncio, sys
from democrai_sandbox.access.identity import Caller
from democrai_sandbox.runtime.store import Progress, open_runtime_store
from democrai_sandbox.runtime.tasks import TaskRuntime, TaskSettings

async def surface(module, kind, name, params, caller, /, *, seconds=None, ancestors=()):
    if name == "quick":
        return "result"
    runtime.note_progress(caller.task_id, Progress(0.5, "half way"))
    await asyncio.sleep(60)

async def main():
    global runtime
    settings = TaskSettings(per_module=1, progress_every=0.01)
    runtime = TaskRuntime(open_runtime_store(sys.argv[1]), surface, node=sys.argv[2], settings=settings)
    for name in ("quick", "long"):
        runtime.declare("demo", name)
    await runtime.start()
    caller = Caller(user_id="uma", session_key="s1")
    ids = [await runtime.submit("demo", "quick", {}, caller)]
    while (await runtime.status(ids[0])).state != "done":
        await asyncio.sleep(0.01)
    for _ in range(2):
        ids.append(await runtime.submit("demo", "long", {"page": 7}, caller))
    while (await runtime.status(ids[1])).progress.fraction is None:
        await asyncio.sleep(0.01)
    print(*ids, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def url(kind, tmp_path):
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path}/access.db"
        return
    with postgres_server() as server:
        yield server.new_database()


@pytest.mark.parametrize(("kind", "node"), [("sqlite", "the same"), ("sqlite", "another"), ("postgresql", "the same")])
def test_what_ran_when_the_process_was_killed_is_known(url, kind, node):
    """What had ended stays; what ran or waited is lost, with what it had said, for whom, and with what to do."""
    program = subprocess.Popen([sys.executable, "-c", PROGRAM, url, "the same"], stdout=subprocess.PIPE, text=True)
    try:
        quick, running, waiting = program.stdout.readline().split()
    finally:
        os.kill(program.pid, signal.SIGKILL)
        program.wait()
        program.stdout.close()
    store = open_runtime_store(url)

    async def restart():
        silent = 30.0 if node == "the same" else 0.3
        runtime = TaskRuntime(store, None, node=node, settings=TaskSettings(heartbeat=0.1, silent_after=silent))
        lost = await runtime.start()
        while not all(store.task(one).state.is_final for one in (running, waiting)):
            await asyncio.sleep(0.02)
        await runtime.stop()
        return lost

    lost = asyncio.run(asyncio.wait_for(restart(), 60))
    if node == "the same":
        assert lost == (running, waiting)
    assert (store.task(quick).state, store.task(quick).result) == (TaskState.DONE, "result")
    found = store.task(running)
    assert (found.state, found.progress, found.failure.type) == (TaskState.LOST, (0.5, "half way"), "ProcessGone")
    assert (found.origin.user_id, found.origin.session_key, found.params) == ("uma", "s1", {"page": 7})
    assert found.started_at is not None
    assert (store.task(waiting).state, store.task(waiting).started_at) == (TaskState.LOST, None)
    store.close()
