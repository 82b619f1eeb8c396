"""Requests by tasks: each names the run of the task that asked, even if the task's code claims another."""

from __future__ import annotations

import asyncio
import os

import pytest

HOUSE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "host_setup.py")
MODULE = """
import asyncio, contextvars
from democrai_sandbox import sdk
def asked(path):
    target = f"https://api.example{path}"
    wanted = {"resource_type": "network", "operation": "receive", "target": target}
    return str(sdk.access.check_external_access(**wanted).code)

@sdk.task("read")
async def read(path):
    sdk.tasks.progress(0.5, "begun")
    while not sdk.data_dir().joinpath("go").exists():
        await asyncio.sleep(0.02)
    return asked(path)

@sdk.task("thread")
def thread(path):
    return asked(path)

@sdk.action("look")
def look(path):
    return asked(path)

@sdk.action("pretend")
def pretend(path, task_id):
    for variable in contextvars.copy_context():
        if variable.name == "democrai_sandbox_served":
            variable.set(type(variable.get())("uma", "", "monday", "", "", task_id))
        if variable.name == "democrai_call":
            variable.set(variable.get() + 1000)
    return asked(path)
"""


def asking(world):
    """Let runs of tasks and actions ask, two runs of one task concurrently; return the task of each request."""
    house = world.load(HOUSE)["House"](world)
    house.extension("demo", MODULE)
    data = os.path.join(house.base, "data", "modules", "demo")

    async def story():
        from democrai_sandbox.access import Caller

        runtime, uma = house.runtime, Caller(user_id="uma", session_key="monday")
        first, second = [
            await runtime.tasks.submit("demo", "read", {"path": f"/srv/{name}"}, uma) for name in ("first", "second")
        ]
        for one in (first, second):
            while (await runtime.tasks.status(one)).progress.message != "begun":
                await asyncio.sleep(0.02)
        await runtime.modules.action("demo", "look", {"path": "/srv/look"}, uma)
        await runtime.modules.action("demo", "pretend", {"path": "/srv/pretend", "task_id": "elsewhere"}, uma)
        with open(os.path.join(data, "go"), "w"):
            pass
        third = await runtime.tasks.submit("demo", "thread", {"path": "/srv/third"}, uma)
        for one in (first, second, third):
            assert await house.ended(one) == "pending"
        found = {one.access.target: one.origin.task_id for one in house.admin("pending_requests").items}
        names = {first: "first", second: "second", third: "third"}
        return {os.path.basename(target): names.get(task_id, task_id) for target, task_id in found.items()}

    return house.serve(story, isolation={"module:demo": world.args[0]})


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_a_request_names_the_run_that_asked(case, isolation):
    """By its id, not by the name of the task; an action is not a task run, and cannot claim to be one."""
    told = case.run(asking, isolation)
    assert told == {"first": "first", "second": "second", "third": "third", "look": "", "pretend": ""}
