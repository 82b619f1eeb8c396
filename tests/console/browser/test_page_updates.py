"""Pages stay correct after changes: ended decisions, resumed actions, failed tasks."""

from __future__ import annotations

from datetime import UTC, datetime

from playwright.sync_api import expect

from democrai_sandbox.access.store import open_database
from democrai_sandbox.access.values import new_id
from democrai_sandbox.console.render import MESSAGES
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.runtime.store import NewTask, RuntimeStore, TaskState
from tests.console.serving import until

CANDIDATE = '{"name": "reports"}'


def approve(page, number):
    """Approve a request permanently."""
    page.goto(f"/requests/{number}")
    page.get_by_role("button", name="Approve permanently").click()
    page.get_by_role("button", name="Approve this rule permanently").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["approved"])


def revoke(page):
    """Revoke the last approval."""
    page.get_by_role("link", name="Revoke…").click()
    page.get_by_role("button", name="Revoke the approval").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["revoked"])


def test_a_list_that_is_open_and_a_new_one_show_a_revocation(standing, desk):
    """The open list is updated, and a new one has the request under ended."""
    number = desk.ask("https://truth.example/revoked")
    ada, bob = standing.window("ada"), standing.window("bob")
    approve(ada, number)
    bob.goto("/requests?state=approved&text=truth.example")
    expect(bob.get_by_role("row").filter(has_text="/revoked")).to_contain_text("approved")
    revoke(ada)
    expect(bob.get_by_role("row").filter(has_text="/revoked").locator(".became")).to_have_text("revoked by ada")
    bob.reload()
    expect(bob.get_by_role("row").filter(has_text="/revoked")).to_have_count(0)
    bob.get_by_role("navigation", name="States").get_by_role("link", name="Ended").click()
    row = bob.get_by_role("row").filter(has_text="/revoked")
    expect(row).to_contain_text("revoked")
    expect(row).not_to_contain_text("approved")


def test_the_audit_names_the_start_and_the_end_of_a_shadow_run(standing):
    """The records have separate actions, not notes."""
    page = standing.window("ada")
    page.goto("/shadows")
    page.get_by_label("Subject").fill("module:reports")
    page.get_by_role("textbox", name="Candidate").fill(CANDIDATE)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["shadow_started"])
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["shadow_ended"])
    page.goto("/audit")
    acts = page.get_by_role("row").filter(has_text="module:reports")
    expect(acts.nth(0)).to_contain_text("shadow ended")
    expect(acts.nth(1)).to_contain_text("shadow started")


def test_similar_decisions_are_other_ones(standing, desk):
    """The answer of a request is not among its similar decisions."""
    page = standing.window("ada")
    approve(page, desk.ask("https://alike.example/first"))
    number = desk.ask("https://alike.example/second")
    approve(page, number)
    similar = page.get_by_role("region", name="Similar decisions").get_by_role("listitem")
    expect(similar).to_have_count(1)
    expect(similar).to_contain_text("/first")


def test_the_panel_of_a_resumed_action_follows_it(standing, desk):
    """Panel and history are updated until the action ends."""
    number = desk.ask("https://resumed.example/v1", action="go_on")
    resume = desk.resume(number, node="elsewhere")
    page = standing.window("ada")
    page.goto(f"/requests/{number}")
    panel = page.get_by_role("region", name="Resume action")
    expect(panel).to_contain_text("running")
    desk.store.finish_resume(resume, node="elsewhere", error="", retry_at=None, now=datetime.now(UTC))
    expect(panel).to_contain_text("succeeded")
    expect(page.get_by_role("region", name="History")).to_contain_text("Resume succeeded")


def test_a_part_that_follows_goes_on_after_a_failed_answer(standing, desk):
    """The page recovers after a short outage of the server."""
    number = desk.ask("https://resumed.example/away", action="go_on")
    resume = desk.resume(number, node="elsewhere")
    page = standing.window("ada")
    page.goto(f"/requests/{number}")
    panel = page.get_by_role("region", name="Resume action")
    expect(panel).to_contain_text("running")
    failed = []

    def fail(route):
        failed.append(route.request.url)
        route.fulfill(status=429) if len(failed) < 3 else route.continue_()

    page.route(f"**/requests/{number}", fail)
    desk.store.finish_resume(resume, node="elsewhere", error="", retry_at=None, now=datetime.now(UTC))
    expect(panel).to_contain_text("succeeded")
    page.unroute(f"**/requests/{number}")
    assert len(failed) == 3


def test_a_task_that_failed_is_not_told_to_be_started(standing, served):
    """The message disappears when the task has ended."""
    page = standing.window("ada")
    page.goto("/extensions/module/digest/run/task/collect")
    page.get_by_label("Parameters").fill(f'{{"pages": ["{served.web.url}/elsewhere/failed"]}}')
    page.get_by_role("button", name="Start the task").click()
    page.wait_for_url("**/tasks/*")
    expect(page.get_by_role("heading", name="Denied")).to_be_visible()
    expect(page.get_by_text(MESSAGES["task_started"])).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", name="Denied")).to_be_visible()
    expect(page.get_by_text(MESSAGES["task_started"])).to_have_count(0)


def test_the_list_of_tasks_follows_them(standing, served):
    """The end of a task appears without a reload."""
    number, now = new_id(), datetime.now(UTC)
    store = RuntimeStore(open_database(f"sqlite:///{served.folder}/state/sandbox.db"))
    try:
        store.add_task(NewTask(number, "gone", "followed", "elsewhere"), now=now)
        store.start_task(number, node="elsewhere", now=now)
        page = standing.window("ada")
        page.goto("/tasks?module=gone")
        row = page.get_by_role("row").filter(has_text="followed")
        expect(row).to_contain_text("running")
        store.finish_task(number, TaskState.DONE, node="elsewhere", now=now)
        expect(row).to_contain_text("done")
    finally:
        store.close()


def test_one_call_is_asked_one_time(standing, served):
    """The queue counts calls, not access checks."""
    page = standing.window("ada")
    with served.bearer(served.person("uma"), Scope.MODULES_RUN) as uma:
        for _ in range(2):
            number = served.stop_weather(uma, "/forecast/counted")
    page.goto("/requests?text=/forecast/counted")
    asked = page.get_by_role("row").filter(has_text="/forecast/counted").locator('[data-label="Asked"]')
    expect(asked).to_contain_text("1 time")  # what comes soon after is written a little later
    until(lambda: page.reload() and "2 times" in asked.inner_text(), "the second call to be counted")
    page.goto(f"/requests/{number}")
    expect(page.get_by_role("region", name="Request", exact=True)).to_contain_text("2 times")


def test_an_approval_is_not_the_reason_of_an_older_denial(standing, served):
    """The page shows the old reason and the later approval."""
    page = standing.window("ada")
    with served.bearer(served.person("uma"), Scope.MODULES_RUN) as uma:
        approve(page, served.stop_weather(uma, "/forecast/older"))
    observed = page.get_by_role("region", name="Observed").get_by_role("listitem")
    entry = observed.filter(has_text="/forecast/older").filter(has_text="denied")
    until(lambda: page.goto("/subjects/module/weather") and entry.count(), "the denial")
    expect(entry).to_contain_text("not declared")
    expect(entry).to_contain_text("approved since")
    expect(entry).not_to_contain_text("by approval")
