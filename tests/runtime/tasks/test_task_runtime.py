"""Tasks in the host: recorded before they run, limited, canceled, stopped, scheduled."""

from __future__ import annotations

import asyncio
import shutil
import time

import pytest

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.errors import (
    CallTimeout,
    ExtensionFailed,
    ExtensionUnknown,
    FilesystemDenied,
    InvalidInputError,
    RuntimeServiceFailed,
    StoreUnavailable,
    TaskQueueFull,
    TaskUnknown,
)
from democrai_sandbox.runtime.store import Progress, TaskFilter, TaskState, open_runtime_store
from democrai_sandbox.runtime.task_queue import TaskSettings
from democrai_sandbox.runtime.task_runtime import TaskRuntime
from tests.services.golden import sentence

UMA = Caller(user_id="uma", organization_id="acme", session_key="s1", role="super", access_level="super")
FAST = {"heartbeat": 0.05, "progress_every": 0.05, "patience": 0.3, "silent_after": 5.0}


class Surfaces:
    """Functions that replace those of a module, with a record of their calls."""

    def __init__(self):
        self.calls = []
        self.running = 0
        self.most = 0
        self.runtime = None
        self.gate = asyncio.Event()

    async def __call__(self, module, kind, name, params, caller, /, *, seconds=None, ancestors=()):
        self.calls.append((module, kind, name, params, caller, seconds, tuple(map(str, ancestors))))
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await getattr(self, name)(caller, **params)
        finally:
            self.running -= 1

    async def add(self, caller, *, a, b):
        return {"sum": a + b}

    async def sleep(self, caller, *, seconds=30.0):
        await asyncio.sleep(seconds)

    async def held(self, caller):
        await self.gate.wait()

    async def says(self, caller):
        self.runtime.note_progress(caller.task_id, Progress(0.25, "first"))
        self.runtime.note_progress(caller.task_id, Progress(0.5, "second"))
        await self.gate.wait()
        self.runtime.note_progress(caller.task_id, Progress(0.75, "last"))
        return None

    async def fails(self, caller):
        raise ExtensionFailed("page", kind="LookupError", traceback="Traceback ...")

    async def denied(self, caller):
        raise FilesystemDenied("/srv/x", subject="demo", subject_kind="module", operations=("read",))

    async def late(self, caller):
        raise CallTimeout("late")

    async def broken(self, caller):
        raise ZeroDivisionError

    async def unstorable(self, caller):
        return b"bytes"

    async def deaf(self, caller):
        while True:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                if self.runtime is None:
                    raise


NAMES = ("add", "held", "sleep", "says", "fails", "denied", "late", "broken", "unstorable", "deaf")


@pytest.fixture
def store(tmp_path, prepared_file):
    """Open an empty store."""
    shutil.copy(prepared_file, tmp_path / "access.db")
    store = open_runtime_store(f"sqlite:///{tmp_path}/access.db")
    yield store
    store.close()


def run(store, story, *, node="n-1", **settings):
    """Run a story with a task runtime on a separate loop."""

    async def main():
        surfaces = Surfaces()
        runtime = TaskRuntime(store, surfaces, node=node, settings=TaskSettings(**{**FAST, **settings}))
        surfaces.runtime = runtime
        for name in NAMES:
            runtime.declare("demo", name)
        await runtime.start()
        try:
            return await story(runtime, surfaces)
        finally:
            surfaces.runtime = None
            await runtime.stop()

    return asyncio.run(asyncio.wait_for(main(), 60))


async def ended(runtime, task_id):
    """Return the record of a task after its end."""
    while not (found := await runtime.status(task_id)).state.is_final:
        await asyncio.sleep(0.01)
    return found


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_a_task_runs_for_who_started_it_and_its_result_is_kept(store):
    """User, organization and session are kept, role and level are not; the call chain names the task of the module."""

    async def story(runtime, surfaces):
        task_id = await runtime.submit("demo", "add", {"a": 1, "b": 2}, UMA, timeout=7)
        return await ended(runtime, task_id), surfaces.calls[0]

    found, called = run(store, story)
    assert (found.state, found.result, found.failure, found.attempt) == ("done", {"sum": 3}, None, 1)
    assert found.origin == ("uma", "acme", "s1", False)
    assert found.created_at <= found.started_at <= found.finished_at
    caller = Caller(user_id="uma", organization_id="acme", session_key="s1", task_id=found.id)
    assert called == ("demo", "task", "add", {"a": 1, "b": 2}, caller, 7, ("task:demo.add",))


FAILURES = {
    "fails": ("LookupError", "page", "Traceback ...", ""),
    "denied": ("FilesystemDenied", "sandbox_filesystem_denied:demo:/srv/x", ..., "sandbox_filesystem_denied"),
    "late": ("CallTimeout", "late", ..., ""),
    "broken": ("RuntimeServiceFailed", ..., "", ""),
    "unstorable": ("InvalidInputError", ..., "", ""),
}


def test_a_failure_is_recorded_as_what_it_was(store):
    """Its own error, a denial with its code, a timeout, a failure of the runtime, a result that cannot be stored."""

    async def story(runtime, surfaces):
        return {name: await ended(runtime, await runtime.submit("demo", name, {}, UMA)) for name in FAILURES}

    found = run(store, story)
    for name, failure in FAILURES.items():
        assert found[name].state == "failed"
        for seen, wanted in zip(found[name].failure, failure, strict=True):
            assert wanted is ... or seen == wanted, name
    sentence("failure of the runtime", found["broken"].failure.message)


def test_progress_is_seen_while_it_runs_and_at_the_end(store):
    """The last report counts; not every report is written."""

    async def story(runtime, surfaces):
        task_id = await runtime.submit("demo", "says", {}, UMA)
        while (seen := (await runtime.status(task_id)).progress).fraction is None:
            await asyncio.sleep(0.01)
        surfaces.gate.set()
        return seen, (await ended(runtime, task_id)).progress

    seen, last = run(store, story)
    assert seen == (0.5, "second")
    assert last == (0.75, "last")


def test_limits_for_each_module_and_in_all(store):
    """Modules take turns; tasks beyond the limit are refused and not recorded."""

    async def story(runtime, surfaces):
        runtime.declare("other", "held")
        first = [await runtime.submit("demo", "held", {}, UMA) for _ in range(2)]
        await until(lambda: surfaces.running == 2)
        first += [await runtime.submit("demo", "held", {}, UMA) for _ in range(4)]
        with pytest.raises(TaskQueueFull):
            await runtime.submit("demo", "held", {}, UMA)
        others = [await runtime.submit("other", "held", {}, UMA) for _ in range(2)]
        await until(lambda: surfaces.running == 3)
        states = [(await runtime.status(one)).state.value for one in (*first, *others)]
        surfaces.gate.set()
        for one in (*first, *others):
            assert (await ended(runtime, one)).state == "done"
        return states, surfaces.most, len(await runtime.tasks(TaskFilter()))

    states, most, count = run(store, story, per_module=2, in_all=3, queued_per_module=4)
    assert states == ["running"] * 2 + ["queued"] * 4 + ["running", "queued"]
    assert (most, count) == (3, 8)


def test_cancelling(store):
    """A running, a queued, an ended, a stubborn and an unknown task."""

    async def story(runtime, surfaces):
        running = await runtime.submit("demo", "sleep", {}, UMA)
        waiting = await runtime.submit("demo", "sleep", {}, UMA)
        await until(lambda: surfaces.running)
        answers = [await runtime.cancel(waiting), await runtime.cancel(running, "enough")]
        records = [await ended(runtime, running), await ended(runtime, waiting)]
        answers.append(await runtime.cancel(running))
        with pytest.raises(TaskUnknown):
            await runtime.cancel("nothing")
        deaf = await runtime.submit("demo", "deaf", {}, UMA)
        await until(lambda: surfaces.running)
        await runtime.cancel(deaf)
        records.append(await ended(runtime, deaf))
        after = await ended(runtime, await runtime.submit("demo", "add", {"a": 1, "b": 1}, UMA))
        return answers, records, after.state

    answers, (running, waiting, deaf), after = run(store, story, per_module=1)
    assert answers == [True, True, False]
    assert (running.state, running.failure.message, waiting.state) == ("cancelled", "enough", "cancelled")
    assert waiting.started_at is None
    assert deaf.state == "cancelled"
    sentence("task that does not give in", deaf.failure.message)
    assert after == "done"  # although the abandoned one never ends


def test_bad_input_is_refused_before_anything_is_recorded(store):
    """The error for an unknown task suggests the nearest name."""

    async def story(runtime, surfaces):
        for error, arguments in (
            (ExtensionUnknown, ("demo", "ad", {})),
            (ExtensionUnknown, ("nobody", "add", {})),
            (InvalidInputError, ("demo", "add", [])),
            (InvalidInputError, ("demo", "add", {"a": object()})),
            (InvalidInputError, ("demo", "add", {"a": "x" * 300_000})),
        ):
            with pytest.raises(error) as caught:
                await runtime.submit(*arguments, UMA)
        for timeout in (0, -1, float("nan"), 1e9, "1"):
            with pytest.raises(InvalidInputError):
                await runtime.submit("demo", "add", {}, UMA, timeout=timeout)
        for name in ("", "a\0b", "x" * 5000):
            with pytest.raises(InvalidInputError):
                runtime.declare("demo", name)
        for every in (0, -1, float("nan"), 1e300, "1"):
            with pytest.raises(InvalidInputError):
                runtime.declare("demo", "x", every=every)
        with pytest.raises(ExtensionUnknown, match="'add'"):
            await runtime.submit("demo", "ad", {}, UMA)
        return await runtime.tasks(TaskFilter())

    assert run(store, story) == ()


def test_stopping_ends_what_runs_and_marks_what_waits(store):
    """The record has no running tasks left; afterwards new tasks are refused."""

    async def story(runtime, surfaces):
        running = await runtime.submit("demo", "sleep", {}, UMA)
        waiting = await runtime.submit("demo", "sleep", {}, UMA)
        deaf_too = await runtime.submit("demo", "sleep", {}, UMA)
        await until(lambda: surfaces.running)
        await runtime.stop()
        with pytest.raises(RuntimeServiceFailed):
            await runtime.submit("demo", "add", {"a": 1, "b": 2}, UMA)
        return running, waiting, deaf_too, surfaces.running

    *ids, running = run(store, story, per_module=1)
    assert running == 0
    for task_id in ids:
        found = store.task(task_id)
        assert (found.state, found.failure.type) == ("cancelled", "Cancelled")
    sentence("task of a stopped runtime", found.failure.message)


def test_a_cancel_from_another_node_is_heard(store):
    """With the next heartbeat."""

    async def story(runtime, surfaces):
        task_id = await runtime.submit("demo", "sleep", {}, UMA)
        await until(lambda: surfaces.running)
        other = TaskRuntime(store, surfaces, node="n-2", settings=TaskSettings(**FAST))
        await other.start()
        assert await other.cancel(task_id)
        found = await ended(runtime, task_id)
        await other.stop()
        return found

    assert run(store, story).state == "cancelled"


def test_tasks_of_a_node_that_has_fallen_silent_are_lost_and_can_be_run_again(store):
    """Another node detects it at run time."""

    async def story(runtime, surfaces):
        dead = TaskRuntime(store, surfaces, node="dead", settings=TaskSettings(**{**FAST, "heartbeat": 60}))
        dead.declare("demo", "sleep")
        dead.declare("demo", "add")
        await dead.start()
        task_id = await dead.submit("demo", "sleep", {"seconds": 20}, UMA)
        lost = await ended(runtime, task_id)
        surfaces.sleep = lambda caller, seconds: surfaces.add(caller, a=seconds, b=1)
        await runtime.retry(task_id, UMA)
        again = await ended(runtime, task_id)
        with pytest.raises(InvalidInputError) as caught:
            await runtime.retry(task_id, UMA)
        (problem,) = caught.value.problems
        assert problem.pointer == "/id"
        assert task_id in problem.message and "done" in problem.message
        await dead.stop()
        return lost, again

    lost, again = run(store, story, silent_after=0.4)
    assert (lost.state, lost.node, lost.failure.type) == ("lost", "dead", "ProcessGone")
    assert (again.state, again.node, again.attempt, again.result) == ("done", "n-1", 2, {"sum": 21})


def test_a_store_that_is_away_for_a_while_loses_nothing(store, monkeypatch):
    """Starting a task reports that the store is down; ended tasks are recorded when it is back."""

    async def story(runtime, surfaces):
        task_id = await runtime.submit("demo", "held", {}, UMA)
        await until(lambda: surfaces.running)
        act = store.database.act

        def away(work):
            raise StoreUnavailable

        monkeypatch.setattr(store.database, "act", away)
        with pytest.raises(StoreUnavailable):
            await runtime.submit("demo", "add", {"a": 1, "b": 2}, UMA)
        surfaces.gate.set()
        await asyncio.sleep(0.6)
        assert (await runtime.status(task_id)).state == "running"
        monkeypatch.setattr(store.database, "act", act)
        return await ended(runtime, task_id)

    assert run(store, story).state == "done"


def test_a_scheduled_task_runs_once_among_nodes_for_each_period(store):
    """Without a user and a session; while a run takes longer than its period, no other one starts."""

    async def story(runtime, surfaces):
        others = [TaskRuntime(store, surfaces, node=f"n-{n}", settings=TaskSettings(**FAST)) for n in (2, 3)]
        surfaces.tick = lambda caller: surfaces.add(caller, a=1, b=1)
        surfaces.slow = lambda caller: surfaces.sleep(caller, seconds=0.75)
        begun = time.monotonic()
        for each in (runtime, *others):
            each.declare("demo", "tick", every=0.2)
            each.declare("demo", "slow", every=0.2, timeout=5)
        for each in others:
            await each.start()
        await asyncio.sleep(1.3)
        await until(lambda: sum(call[2] == "tick" for call in surfaces.calls) >= 2)
        await until(lambda: any(call[2] == "slow" for call in surfaces.calls))
        for each in others:
            await each.stop()
        runtime.forget("demo")
        await until(lambda: not len(runtime.jobs))
        return time.monotonic() - begun, surfaces.calls, await runtime.tasks(TaskFilter(name="tick")), runtime

    passed, calls, recorded, _ = run(store, story)
    ticks = [call for call in calls if call[2] == "tick"]
    slow = [call for call in calls if call[2] == "slow"]
    assert len(ticks) <= passed / 0.2 + 1
    # One that was recorded right before its node was stopped has not begun.
    assert len(ticks) == sum(task.started_at is not None for task in recorded)
    assert len(slow) <= passed / 0.75 + 1
    assert all(call[4][:3] == ("", "", "") for call in calls)
    assert all(call[6] == ("task:demo.tick",) for call in ticks)
    assert slow[0][5] == 5
    assert all(task.origin == ("", "", "", True) for task in recorded)


def test_many_tasks_leave_nothing_behind(store):
    """All of them end, and the runtime forgets them."""

    async def story(runtime, surfaces):
        ids = [await runtime.submit("demo", "add", {"a": n, "b": 0}, UMA) for n in range(40)]
        await until(lambda: not len(runtime.jobs))
        return ids, len(runtime._working), len(asyncio.all_tasks())

    ids, working, tasks = run(store, story, queued_per_module=1000)
    done = store.tasks(TaskFilter(states=(TaskState.DONE,)), limit=1000)
    assert sorted(task.id for task in done) == sorted(ids)
    assert working <= 1
    assert tasks <= 6
