"""Resume actions after an approval: the action, its user, and what stops it."""

from __future__ import annotations

import os

import pytest

from tests.services.forks import HostCase as Case
from tests.services.golden import sentence
from tests.services.rows import rows

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


ORDERS = {
    "by its name": ("fetch", "approve_for_session", ""),
    "with the module's": ("demo.fetch", "approve_permanently", ""),
    "by its name, for good": ("fetch", "approve_permanently", ""),
    "with the module's, for a session": ("demo.fetch", "approve_for_session", ""),
    "a task": ("later", "approve_for_session", ""),
    "promoted": ("fetch", "approve_for_session", "promoted"),
    "another module's": ("other.fetch", "approve_for_session", ""),
    "misspelt": ("fetsh", "approve_for_session", ""),
    "odd context": ("fetch", "approve_for_session", "odd context"),
    "shut out": ("fetch", "approve_permanently", "shut out"),  # the last: it is tried again later
}
"""Requests with a resume action: the action, the decision, and the change in between."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """Result of each request, one after another in one sandbox, each with a separate page."""
    return Case(tmp_path_factory.mktemp("resuming")).run(going_on, ORDERS)


def going_on(world):
    app = world.load(EMBEDDED)["Embedded"](world.base)
    for name in ("demo", "other"):
        app.module(name, ASKING)

    async def story(app):
        return {
            name: await gone_on(world, app, number, *order)
            for number, (name, order) in enumerate(world.args[0].items())
        }

    return app.play(story)


async def gone_on(world, app, number, resume, act, change):
    """Request with a resume action, approve, and return the result and the fetched data."""
    import asyncio
    import time

    data = os.path.join(world.base, "app", "state", "data", "modules")
    places = {name: os.path.join(data, name, "fetched") for name in ("demo", "other")}
    url = f"{app.web.url}/page{number}"
    context = {"url": url} if change != "odd context" else [url]
    request = await app.action("demo", "ask", url=url, resume=resume, context=context)
    uma = app.people["uma"]
    if change == "promoted":
        app.people["uma"] = uma._replace(organization_id="south", role="editor")
    if change == "shut out":
        del app.people["uma"]
    app.as_ada(act, request)
    found = await app.resumed(request)
    end = time.monotonic() + 60
    while resume == "later" and not os.path.exists(places["demo"]) and time.monotonic() < end:
        await asyncio.sleep(0.05)  # the task was started and runs independently
    app.people["uma"] = uma
    return {
        "state": found.state,
        "error": found.last_error.replace(app.web.url, ""),
        "page": f"/page{number}",
        "fetched": {name: taken(place) for name, place in places.items()},
        "asked": [path for path in app.web.asked if path == f"/page{number}"],
    }


def taken(path):
    """Return the content of a file, and remove it."""
    if not os.path.exists(path):
        return ""
    with open(path) as file:
        text = file.read()
    os.unlink(path)
    return text


@rows("order", list(ORDERS)[:4])
def test_after_an_approval_the_action_runs_for_the_requester(outcomes, order):
    """An action, by its name or with the module's name, gets the context and runs in the same session."""
    told = outcomes[order]
    assert (told["state"], told["error"]) == ("succeeded", "")
    assert told["fetched"] == {"demo": f"GET {told['page']} ['uma', 'north', 'monday', '', '', '']", "other": ""}


def test_a_task_goes_on_too(outcomes):
    """A resume action that is a task of the module is started as a task."""
    told = outcomes["a task"]
    assert told["state"] == "succeeded"
    assert told["fetched"]["demo"].startswith(f"GET {told['page']} [")


def test_the_requester_is_what_they_are_by_then(outcomes):
    """Role and organization are looked up when it resumes, not when it was requested."""
    told = outcomes["promoted"]
    assert (told["state"], told["error"]) == ("succeeded", "")
    assert "'south', 'monday', 'editor'" in told["fetched"]["demo"]


def test_for_somebody_shut_out_nothing_goes_on(outcomes):
    """A deleted or disabled user does not act through an approval; the failure says so."""
    told = outcomes["shut out"]
    assert "'uma'" in told["error"]
    assert told["asked"] == []
    sentence("shut out", told["error"])


@rows(
    ("order", "value"),
    [("another module's", "'other.fetch'"), ("misspelt", "'fetch'"), ("odd context", "/resume_context: ")],
)
def test_what_cannot_go_on_fails_with_the_reason(outcomes, order, value):
    """Another module's action, an unknown one, and an invalid context: nothing runs."""
    told = outcomes[order]
    assert value in told["error"]
    assert told["asked"] == []
    assert set(told["fetched"].values()) == {""}
    sentence(order, told["error"])
