"""The story of `make run` in the console: denied, decided, resumed, audited."""

from __future__ import annotations

from playwright.sync_api import expect

from democrai_sandbox.console.render import MESSAGES
from democrai_sandbox.host.scopes import Scope
from tests.console.serving import until
from tests.services.golden import sentence

REASON = "A forecast is fine."
NOTE = "For the report of today."


def test_a_module_is_stopped_and_goes_on_after_an_approval(people, served):
    """After a session approval the module resumes; the audit log has all steps."""
    page = people.window("ada")
    page.goto("/requests")
    with served.bearer(served.person("uma"), Scope.MODULES_RUN) as uma:
        number = served.stop_weather(uma, "/forecast/story")
        # The page says so by itself.
        page.get_by_role("status").get_by_role("link", name="show").click()
        page.get_by_role("row").filter(has_text="/forecast/story").get_by_role("link").first.click()
        page.wait_for_url(f"**/requests/{number}")
        expect(page.get_by_role("heading", level=1)).to_contain_text("weather")
        expect(page.get_by_role("heading", level=1)).to_contain_text("/forecast/story")
        expect(page.get_by_role("main")).to_contain_text("Resumes with")
        page.get_by_label("Reason").fill(REASON)
        page.get_by_role("button", name="Approve for this session").click()
        expect(page.get_by_role("status").first).to_contain_text(MESSAGES["approved_for_session"])
        expect(page.get_by_role("main")).to_contain_text(REASON)
        until(lambda: "/forecast/story" in served.web.asked, "the module going on")
        shown = until(lambda: _shown(uma), "the forecast")
        assert shown == "GET /forecast/story"

    def went_on():
        page.reload()
        return page.get_by_role("region", name="Resume action").get_by_text("succeeded").count()

    until(went_on, "the end of what was resumed")
    page.goto(f"/audit?request={number}")
    acts = page.get_by_role("table").get_by_role("cell")
    for words in ("requested", "approved for session", "resume succeeded"):
        expect(acts.filter(has_text=words).first).to_be_visible()
    page.get_by_role("row").filter(has_text="approved for session").get_by_role("link").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("approved for session")
    expect(page.get_by_role("main")).to_contain_text(REASON)


def _shown(uma):
    answer = uma.post("/api/v1/modules/weather/render", json={"params": {}}).json()
    return answer["result"]["forecast"] if "story" in answer["result"]["forecast"] else ""


def test_somebody_runs_a_module_in_the_console_and_asks(people, served, desk):
    """A user is denied, and follows the link to the pending request."""
    page = people.window("uma")
    page.goto("/extensions")
    page.get_by_role("link", name="weather").click()
    page.get_by_role("link", name="Run action fetch").click()
    page.get_by_label("Parameters").fill('{"url": ')
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_label("Parameters")).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Parameters").fill(f'{{"url": "{served.web.url}/forecast/asked"}}')
    page.get_by_role("button", name="Run").click()
    expect(page.get_by_role("heading", name="Denied")).to_be_visible()
    page.get_by_role("link", name="open the request").click()
    for label in ("Approve for this session", "Approve permanently", "Deny"):
        expect(page.get_by_role("button", name=label)).to_be_disabled()
    sentence("not for everybody", page.get_by_role("region", name="Decide").locator(".notice").inner_text())
    page.get_by_label("Add a note").fill(NOTE)
    page.get_by_role("button", name="Save the note").click()
    expect(page.get_by_role("region", name="History")).to_contain_text(NOTE)
    assert desk.state(page.url.partition("?")[0].rpartition("/")[2]) == "pending"
    expect(page.get_by_role("navigation", name="Main").get_by_role("link", name="Audit")).to_have_count(0)


def test_a_revoked_approval_stops_the_module(people, served):
    """After the revocation the next attempt is denied."""
    path = "/forecast/revoked"
    with served.bearer(served.person("uma"), Scope.MODULES_RUN) as uma:
        number = served.stop_weather(uma, path)
        page = people.window("ada")
        page.goto(f"/requests/{number}")
        page.get_by_role("button", name="Approve permanently").click()
        page.get_by_role("button", name="Approve this rule permanently").click()
        expect(page.get_by_role("status").first).to_contain_text(MESSAGES["approved"])
        until(lambda: _fetch(served, uma, path).status_code == 200, "the approval to be known")
        page.get_by_role("link", name="Revoke…").click()
        expect(page.get_by_role("main")).to_contain_text("Effect")
        page.get_by_role("button", name="Revoke the approval").click()
        expect(page.get_by_role("status").first).to_contain_text(MESSAGES["revoked"])
        until(lambda: _fetch(served, uma, path).status_code == 403, "the end of the approval")


def _fetch(served, uma, path):
    return uma.post("/api/v1/modules/weather/actions/fetch", json={"params": {"url": served.web.url + path}})
