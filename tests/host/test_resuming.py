"""Going on after an approval: which action that is, for whom, and what stops it."""

from __future__ import annotations

import os

import pytest

from tests.services.forks import HostCase as Case

EMBEDDED = os.path.join(os.path.dirname(__file__), "embedded.py")
ASKING = """
import urllib.request

def ask(url, resume, context):
    return sdk.access.require_external_access(
        resource_type="network", operation="receive", target=url, resume_action=resume, resume_context=context
    )

@sdk.action("ask")
def asking(url, resume, context):
    return ask(url, resume, context).request_id

@sdk.action("fetch")
def fetch(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        text = answer.read().decode()
    sdk.data_dir().joinpath("fetched").write_text(f"{text} {list(sdk.request())}")

@sdk.task("later")
def later(url):
    fetch(url)
"""


@pytest.fixture
def case(tmp_path):
    """A private world in which a body runs in a process of its own."""
    return Case(tmp_path)


def going_on(world):
    """Ask with a resume action, approve, and return how it went on and what was fetched."""
    resume, act, change = world.args
    app = world.load(EMBEDDED)["Embedded"](world.base)
    for name in ("demo", "other"):
        app.module(name, ASKING)

    async def story(app):
        url = f"{app.web.url}/page"
        context = {"url": url} if change != "odd context" else [url]
        request = await app.action("demo", "ask", url=url, resume=resume, context=context)
        if change == "promoted":
            app.people["uma"] = app.people["uma"]._replace(organization_id="south", role="editor")
        if change == "shut out":
            del app.people["uma"]
        app.as_ada(act, request)
        found = await app.resumed(request)
        return [found.state, found.last_error]

    told = app.play(story)
    fetched = {
        name: read_text(os.path.join(world.base, "app", "state", "data", "modules", name, "fetched"))
        for name in ("demo", "other")
    }
    return {"told": told, "fetched": fetched, "asked": app.web.asked}


def read_text(path):
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        return file.read()


@pytest.mark.parametrize("resume", ["fetch", "demo.fetch"])
@pytest.mark.parametrize("act", ["approve_for_session", "approve_permanently"])
def test_after_an_approval_the_action_runs_for_the_requester(case, resume, act):
    """An action of the module, by its name or with the module's, gets the context and runs in the same session."""
    told = case.run(going_on, resume, act, "")
    assert told["told"] == ["succeeded", ""]
    assert told["fetched"] == {"demo": "GET /page ['uma', 'north', 'monday', '', '', '']", "other": ""}


def test_a_task_goes_on_too(case):
    """A resume action that is a task of the module is started as one."""
    told = case.run(going_on_with_a_task)
    assert told == {"state": "succeeded", "fetched": "GET /page"}


def going_on_with_a_task(world):
    app = world.load(EMBEDDED)["Embedded"](world.base)
    app.module("demo", ASKING)
    place = os.path.join(world.base, "app", "state", "data", "modules", "demo", "fetched")

    async def story(app):
        import asyncio
        import time

        url = f"{app.web.url}/page"
        request = await app.action("demo", "ask", url=url, resume="later", context={"url": url})
        app.as_ada("approve_for_session", request)
        found = await app.resumed(request)
        end = time.monotonic() + 60
        while not os.path.exists(place) and time.monotonic() < end:
            await asyncio.sleep(0.05)
        return str(found.state)

    state = app.play(story)
    return {"state": state, "fetched": read_text(place).partition(" [")[0]}


def test_the_requester_is_what_they_are_by_then(case):
    """Role and organization are looked up when it goes on, not when it was asked for."""
    told = case.run(going_on, "fetch", "approve_for_session", "promoted")
    assert told["told"] == ["succeeded", ""]
    assert "'south', 'monday', 'editor'" in told["fetched"]["demo"]


def test_for_somebody_shut_out_nothing_goes_on(case):
    """Who is not there any more, or may not come in, does not act through an approval; the failure says so."""
    told = case.run(going_on, "fetch", "approve_permanently", "shut out")
    assert "user 'uma' is not there any more, or shut out" in told["told"][1]
    assert told["asked"] == []


@pytest.mark.parametrize(
    ("resume", "change", "message"),
    [
        ("other.fetch", "", "'other.fetch' is not an action of module:demo"),
        ("fetsh", "", "no handler is registered for the resume action 'fetsh' (did you mean 'fetch'?)"),
        ("fetch", "odd context", "/resume_context: expected an object with the action's parameters, got list"),
    ],
)
def test_what_cannot_go_on_fails_with_the_reason(case, resume, change, message):
    """Another module's action, one that does not exist, and a context that is no parameters: nothing is run."""
    told = case.run(going_on, resume, "approve_for_session", change)
    assert message in told["told"][1]
    assert told["asked"] == []
