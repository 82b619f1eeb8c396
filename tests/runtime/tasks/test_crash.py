"""The record of a killed process's tasks survives."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal

import pytest

from democrai_sandbox.runtime.store import TaskState, open_runtime_store
from democrai_sandbox.runtime.task_queue import TaskSettings
from democrai_sandbox.runtime.task_runtime import TaskRuntime


def killed(world):
    """Finish a task, start one, leave one queued, report them, and be killed."""
    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.runtime.store import Progress, open_runtime_store
    from democrai_sandbox.runtime.task_queue import TaskSettings
    from democrai_sandbox.runtime.task_runtime import TaskRuntime

    url, node = world.args

    async def surface(module, kind, name, params, caller, /, *, seconds=None, ancestors=()):
        if name == "quick":
            return "result"
        runtime.note_progress(caller.task_id, Progress(0.5, "half way"))
        await asyncio.sleep(60)

    runtime = TaskRuntime(
        open_runtime_store(url), surface, node=node, settings=TaskSettings(per_module=1, progress_every=0.01)
    )

    async def main():
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
        os.kill(os.getpid(), signal.SIGKILL)

    asyncio.run(main())


@pytest.fixture
def url(kind, tmp_path, request):
    """Return the URL of an empty database of a kind."""
    if kind == "postgresql":
        return request.getfixturevalue("postgres").new_database()
    shutil.copy(request.getfixturevalue("prepared_file"), tmp_path / "access.db")
    return f"sqlite:///{tmp_path}/access.db"


@pytest.mark.parametrize(("kind", "node"), [("sqlite", "the same"), ("sqlite", "another"), ("postgresql", "the same")])
def test_what_ran_when_the_process_was_killed_is_known(case, url, kind, node):
    """Ended tasks stay; running and queued ones are lost, with their progress, origin and parameters."""
    with pytest.raises(AssertionError) as caught:
        case.run(killed, url, "the same")
    status, ids, *_ = str(caught.value).splitlines()
    assert status == "exit -9"
    quick, running, waiting = ids.split()
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
