"""Resume actions of modules, in a runtime without a host: they run after an approval, for the requester."""

from __future__ import annotations

import asyncio
import os

import pytest

HOUSE = os.path.join(os.path.dirname(__file__), "host_setup.py")
MODULE = """
import urllib.request
from democrai_sandbox import sdk

@sdk.action("ask")
def ask(url, resume):
    return sdk.access.require_external_access(
        resource_type="network", operation="receive", target=url, resume_action=resume, resume_context={"url": url}
    ).request_id

@sdk.action("fetch")
def fetch(url):
    with urllib.request.urlopen(url, timeout=10) as answer:
        sdk.data_dir().joinpath("fetched").write_text(f"{answer.read().decode()} {list(sdk.request())}")

@sdk.task("later")
def later(url):
    fetch(url)
"""


def resumed(house, request_id):
    """Return the outcome of an action; None until it has ended."""
    found = house.access.store.resume_of(request_id)
    return found if found is not None and found.finished_at else None


async def until(happened):
    async with asyncio.timeout(60):
        while not (found := happened()):
            await asyncio.sleep(0.05)
        return found


def going_on(world):
    """Ask with a resume action, approve, and return the outcome and the module's data."""
    isolation, resume = world.args
    house = world.load(HOUSE)["House"](world)
    house.extension("demo", MODULE)
    kept = os.path.join(house.base, "data", "modules", "demo", "fetched")

    async def story():
        from democrai_sandbox.access import Caller

        uma = Caller(user_id="uma", organization_id="acme", session_key="monday")
        given = {"url": f"{house.web.url}/page", "resume": resume}
        request_id = await house.runtime.modules.action("demo", "ask", given, uma)
        house.admin("approve_permanently", request_id)
        found = await until(lambda: resumed(house, request_id))
        if found.state == "succeeded":
            await until(lambda: os.path.exists(kept))
        return [found.state.value, found.last_error, open(kept).read() if os.path.exists(kept) else ""]

    return house.serve(story, isolation={"module:demo": isolation})


@pytest.mark.parametrize("isolation", ["in_process", "process"])
def test_an_action_of_a_module_goes_on_after_an_approval(case, isolation):
    """It runs for the user, organization and session of the request, without a role."""
    state, error, kept = case.run(going_on, isolation, "fetch")
    assert (state, error) == ("succeeded", "")
    assert kept == "GET /page ['uma', 'acme', 'monday', '', '', '']"


def test_a_task_of_a_module_goes_on_after_an_approval(case):
    """It is started as a task."""
    state, error, kept = case.run(going_on, "in_process", "later")
    assert (state, error) == ("succeeded", "")
    assert kept.startswith("GET /page ['uma', 'acme', 'monday', '', '', '")


def waiting(world):
    """Approve before the runtime has started, and after it has stopped; return the outcome of each action."""
    from democrai_sandbox.access import Access, AccessSettings
    from democrai_sandbox.access.values import (
        AccessTuple,
        DecisionEffect,
        DecisionScope,
        NewDecision,
        NewRequest,
        Requester,
        new_id,
    )
    from democrai_sandbox.policy import Operation, ResourceType, Subject
    from democrai_sandbox.runtime import Runtime, RuntimeSettings
    from democrai_sandbox.runtime.access_environment import GuardSurroundings

    house = world.load(HOUSE)["House"](world)
    house.extension(
        "demo",
        """
from democrai_sandbox import sdk

@sdk.action("go_on")
def go_on():
    pass
""",
    )
    access = house.access = Access(
        AccessSettings(f"sqlite:///{house.state}/access.db", f"{house.state}/keys", poll_seconds=0.1),
        GuardSurroundings(),
    )
    settings = RuntimeSettings(data_dir=f"{house.base}/data", modules_path=house.folders["module"])
    runtime = Runtime(settings, access, protected_paths=[house.state])

    def approve(target):
        about = AccessTuple(Subject.parse("module:demo"), ResourceType.FILESYSTEM, Operation.READ, target)
        asked = NewRequest(about, target, ("module:demo",), Requester("uma"), "go_on", new_id())
        access.store.register(asked, now=access.node.clock())
        made = NewDecision(about, DecisionEffect.APPROVAL, DecisionScope.PERMANENT, "ada", request_id=asked.id)
        access.store.decide(made, now=access.node.clock())
        access.resumes.run_due()
        return asked.id

    def state(request_id):
        return access.store.resume_of(request_id).state.value

    async def run():
        async with runtime:
            await until(lambda: resumed(house, before))

    with access:
        before = approve("/srv/before")
        told = [state(before)]
        asyncio.run(run())
        told.append(state(before))
        after = approve("/srv/after")
        return [*told, state(after)]


def test_nothing_goes_on_while_the_runtime_does_not_run(case):
    """Actions approved before its start wait for it; actions approved after its end wait for the next start."""
    assert case.run(waiting) == ["waiting", "succeeded", "waiting"]
