"""Callers that may start tasks: a module, and code inside it with the module's own rights, but not narrowed code."""

from __future__ import annotations

import asyncio
import os

HOUSE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "host_setup.py")


def story(world):
    from democrai_sandbox import process_guard_context
    from democrai_sandbox.access import Caller
    from democrai_sandbox.guard import entrance, is_guarded
    from democrai_sandbox.runtime import sdk_services
    from democrai_sandbox.runtime.access_environment import serving
    from democrai_sandbox.runtime.store import Progress, open_runtime_store
    from democrai_sandbox.runtime.task_runtime import TaskRuntime, TaskService
    from democrai_sandbox.sdk import tasks

    told, ran, gate = {}, [], asyncio.Event()

    async def surface(module, kind, name, params, caller, /, *, seconds=None, ancestors=()):
        ran.append([module, name, is_guarded(), caller.user_id])
        if params.get("held"):
            await gate.wait()

    store = open_runtime_store(world.load(HOUSE)["database"](world.outside))
    runtime = TaskRuntime(store, surface, node="n-1")
    runtime.declare("demo", "index")
    service = TaskService(runtime)
    sdk_services.install(service.services())

    async def start():
        return await tasks.start("index")

    narrowed = entrance(start, exact=True, subject="demo.tool", subject_kind="tool", access=[])
    merged = entrance(start, subject="demo.other", subject_kind="tool", access=[])
    server = entrance(start, exact=True, subject="search", subject_kind="mcp", access=[])

    async def outcome(call):
        try:
            return "started" if len(await call()) == 26 else "odd"
        except Exception as error:
            return [type(error).__name__, str(error)]

    async def body():
        return {
            "module": await outcome(start),
            "merged": await outcome(merged),
            "narrowed": await outcome(narrowed),
            "mcp": await outcome(server),
        }

    def pretend(task_id):
        """Report progress as another task with a known id: the request context can be found and set."""
        import contextvars

        for variable in contextvars.copy_context():
            if variable.name == "democrai_sandbox_served":
                variable.set(Caller(task_id=task_id))
        tasks.progress(1.0, "forged")

    async def host():
        await runtime.start()
        service.promises.open()
        told["before"] = await outcome(lambda: tasks.status("x"))
        guard = process_guard_context(subject="demo", user_id="uma")
        told.update(await guard.run(body))
        told["engine"] = await process_guard_context(subject="demo", subject_kind="engine").run(outcome, start)
        task_id = await runtime.submit("demo", "index", {"held": True}, Caller(user_id="uma"))
        while len(ran) < 3:
            await asyncio.sleep(0.01)
        other = process_guard_context(subject="other")
        with serving(Caller(user_id="uma", task_id="none")):
            other.run(pretend, task_id)
        await asyncio.sleep(0.05)
        told["forged"] = runtime.jobs.get(task_id).progress.message
        runtime.note_progress(task_id, Progress(0.5, "true"))
        gate.set()
        while not (found := await runtime.status(task_id)).state.is_final:
            await asyncio.sleep(0.02)
        told["progress"] = [found.state, found.progress.message]
        await runtime.stop()
        told["after"] = await guard.run(outcome, start)

    asyncio.run(host())
    told["ran"] = ran
    return told


def test_what_was_narrowed_inside_a_module_gets_no_task_with_all_its_rights(case):
    """A tool without its own declarations counts as the module; the surface runs outside the caller's guard."""
    told = case.run(story)
    assert told["module"] == told["merged"] == "started"
    for key in ("narrowed", "mcp", "engine"):
        assert told[key] == ["TamperDenied", "sandbox_guard_denied:tasks.start"], key
    assert told["before"][0] == "InvalidInputError"
    assert told["forged"] == ""
    assert told["progress"] == ["done", "true"]
    assert told["ran"] == [["demo", "index", False, "uma"]] * 3
    assert told["after"][0] == "RuntimeServiceFailed"
