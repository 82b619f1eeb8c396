"""Decisions of administrators in the browser."""

from __future__ import annotations

import re
from datetime import timedelta

from playwright.sync_api import expect

from democrai_sandbox.console.render import MESSAGES
from tests.console.serving import PASSWORD
from tests.services.golden import sentence


def expect_done(page, code):
    """Wait for the message of an action."""
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES[code])


def test_a_broad_approval_is_spelled_out_first(standing, desk):
    """A broader approval needs a second page with the rule."""
    one = desk.ask("https://broad.example/v1/items")
    page = standing.window("ada")
    page.goto(f"/requests/{one}")
    page.get_by_role("radio").last.check()
    page.get_by_role("button", name="Approve permanently").click()
    page.get_by_role("button", name="Approve this rule permanently").wait_for()
    sentence("broad approval", "\n".join(page.locator("h1, main .notice").all_inner_texts()))
    assert desk.state(one) == "pending"
    page.get_by_role("link", name="Back without deciding").click()
    assert desk.state(one) == "pending"
    page.get_by_role("radio").last.check()
    page.get_by_role("button", name="Approve permanently").click()
    page.get_by_role("button", name="Approve this rule permanently").click()
    expect_done(page, "approved")
    assert desk.state(one) == "approved"
    page.goto("/approvals?text=broad.example")
    row = page.get_by_role("row").filter(has_text="broad.example")
    expect(row).to_contain_text("permanent")
    assert "/v1/items" not in row.inner_text()


def test_a_permanent_approval_takes_the_password_of_late(people, served, desk):
    """An old sign-in needs the password before a permanent approval."""
    served.person("ada", role="super")
    one = desk.ask()
    page = people.window("ada", confirmed=timedelta(days=1))
    page.goto(f"/requests/{one}")
    page.get_by_role("button", name="Approve permanently").click()
    page.get_by_role("textbox", name="Your password").fill(PASSWORD)
    assert desk.state(one) == "pending"
    page.get_by_role("button", name="Approve this rule permanently").click()
    expect_done(page, "approved")


def test_a_denial_with_its_reason_can_be_changed(standing, desk):
    """A denial keeps its reason, and can be replaced by an approval."""
    one = desk.ask("https://denied.example/v1")
    page = standing.window("ada")
    page.goto(f"/requests/{one}")
    reason = "Use the mirror instead."
    page.get_by_label("Reason").fill(reason)
    page.get_by_role("button", name="Deny").click()
    expect_done(page, "denied")
    assert desk.state(one) == "denied"
    page.goto("/denials?text=denied.example")
    row = page.get_by_role("row").filter(has_text="denied.example")
    expect(row).to_contain_text(reason)
    row.get_by_role("link", name="Change").click()
    page.get_by_role("link", name="Approve permanently instead").click()
    page.get_by_role("button", name="Approve permanently").click()
    expect_done(page, "approved")
    page.goto("/denials?text=denied.example")
    expect(page.get_by_role("row")).to_have_count(0)


def test_the_second_of_two_administrators_is_told_of_the_first(standing, desk):
    """The later administrator sees the first decision, and nothing changes."""
    one = desk.ask("https://contested.example/v1")
    ada, bob = standing.window("ada"), standing.window("bob")
    for page in (ada, bob):
        page.goto(f"/requests/{one}")
    ada.get_by_role("button", name="Deny").click()
    expect_done(ada, "denied")
    bob.get_by_role("button", name="Approve permanently").click()
    expect(bob.get_by_role("heading", level=1)).to_have_text(re.compile("denied.* ada$"))
    sentence("second of two", bob.locator(".trouble strong").inner_text())
    assert desk.state(one) == "denied"


def test_a_page_that_is_open_says_what_a_colleague_decided(standing, desk):
    """The page reports the decision and keeps the input."""
    one = desk.ask("https://meanwhile.example/v1")
    ada, bob = standing.window("ada"), standing.window("bob")
    for page in (ada, bob):
        page.goto(f"/requests/{one}")
    bob.get_by_label("Reason").fill("half a sen")
    ada.get_by_role("button", name="Deny").click()
    expect(bob.locator("#news")).to_have_text(re.compile("denied.* ada"))
    expect(bob.get_by_label("Reason")).to_have_value("half a sen")


def test_many_are_decided_with_a_preview(standing, desk):
    """Selected requests are listed before and after the decision."""
    ids = [desk.ask(f"https://bulk.example/v1/{number}") for number in range(3)]
    same = desk.ask("https://bulk.example/v1/0", user="ursula", session="another")
    page = standing.window("ada")
    page.goto("/requests?text=bulk.example")
    for number in (0, 1):
        page.get_by_role("checkbox", name=f"https://bulk.example/v1/{number}").check()
    page.get_by_role("button", name="Deny…").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("3 requests")
    expect(page.get_by_role("main")).to_contain_text("ursula")
    assert {desk.state(one) for one in (*ids, same)} == {"pending"}
    page.get_by_label("Reason").fill("Not from here.")
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("3 of 3")
    assert [desk.state(one) for one in (*ids, same)] == ["denied", "denied", "pending", "denied"]
    rows = page.get_by_role("table").get_by_role("row")
    expect(rows.filter(has_text="may not receive")).to_have_count(3)
    expect(page.locator(".state.yes")).to_have_count(0)
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_contain_text("3 of 3")
    page.get_by_role("button", name="Undo: 2 decisions").click()
    expect_done(page, "undone")
    assert {desk.state(one) for one in (*ids, same)} == {"pending"}


def test_nothing_selected_cannot_be_decided(standing, desk):
    """The buttons are enabled only with a selection."""
    desk.ask("https://unselected.example/v1")
    page = standing.window("ada")
    page.goto("/requests?text=unselected.example")
    for label in ("Approve for the sessions…", "Approve permanently…", "Deny…"):
        expect(page.get_by_role("button", name=label)).to_be_disabled()
    page.get_by_role("checkbox").first.check()
    expect(page.get_by_role("button", name="Deny…")).to_be_enabled()
    page.get_by_role("checkbox").first.uncheck()
    expect(page.get_by_role("button", name="Deny…")).to_be_disabled()


def test_nothing_selected_is_said_without_scripts(people, desk):
    """The page reports the missing selection, and links back to the list."""
    desk.ask("https://unscripted.example/v1")
    page = people.window("ada", java_script_enabled=False)
    page.goto("/requests?text=unscripted.example")
    page.get_by_role("button", name="Deny…").click()
    expect(page.get_by_role("alert")).to_contain_text("at least one")
    page.get_by_role("link", name="Back to the queue").click()
    page.wait_for_url("**/requests?text=unscripted.example")


def test_decisions_are_made_without_scripts(people, desk):
    """All decisions work without JavaScript."""
    one, other = desk.ask("https://plain.example/one"), desk.ask("https://plain.example/other")
    page = people.window("ada", java_script_enabled=False)
    page.goto("/requests?state=pending")
    page.get_by_label("Target contains").fill("plain.example/one")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("row").filter(has_text="plain.example").get_by_role("link").first.click()
    page.get_by_label("Add a note").fill("Looked at it.")
    page.get_by_role("button", name="Save the note").click()
    page.get_by_role("button", name="Approve for this session").click()
    expect_done(page, "approved_for_session")
    page.get_by_role("link", name="Undo").click()
    page.get_by_role("button", name="Undo the approval").click()
    expect_done(page, "undone")
    assert desk.state(one) == "pending"
    page.goto(f"/requests/{other}")
    page.get_by_role("radio").last.check()
    page.get_by_role("button", name="Approve permanently").click()
    page.get_by_role("button", name="Approve this rule permanently").click()
    expect_done(page, "approved")
    # The last choice is the whole server: it answers both.
    assert (desk.state(one), desk.state(other)) == ("approved", "approved")


def test_a_request_without_a_session_says_why_it_cannot_be_approved_for_one(standing, desk):
    """The button is disabled, with the reason."""
    one = desk.ask(session="")
    page = standing.window("ada")
    page.goto(f"/requests/{one}")
    expect(page.get_by_role("button", name="Approve for this session")).to_be_disabled()
    sentence("no session", page.locator(".off .hint").inner_text())
