"""Pages that are true after something changed: decisions that ended, actions that went on, tasks that failed."""

from __future__ import annotations

from playwright.sync_api import expect

from democrai_sandbox.console.messages import MESSAGES

CANDIDATE = '{"name": "reports"}'


def approve(page, number):
    """Approve a request permanently."""
    page.goto(f"/requests/{number}")
    page.get_by_role("button", name="Approve permanently").click()
    if page.get_by_role("button", name="Approve this rule permanently").count():
        page.get_by_role("button", name="Approve this rule permanently").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["approved"])


def revoke(page):
    """Revoke the approval that was given just now."""
    page.get_by_role("link", name="Revoke…").click()
    page.get_by_role("button", name="Revoke the approval").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["revoked"])


def test_a_list_that_is_open_and_a_new_one_show_a_revocation(standing, desk):
    """A colleague's list says so by itself; loaded again, the request is among those that ended, not the approved."""
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
    """By what they are: nobody wrote a note."""
    page = standing.window("ada")
    page.goto("/shadows")
    page.get_by_label("Subject").fill("module:reports")
    page.get_by_role("textbox", name="Candidate").fill(CANDIDATE)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["shadow_started"])
    page.get_by_role("button", name="End").click()
    expect(page.get_by_role("status").first).to_contain_text(MESSAGES["shadow_ended"])
    page.goto("/audit")
    acts = page.get_by_role("row").filter(has_text="module:reports")
    expect(acts.nth(0)).to_contain_text("shadow ended")
    expect(acts.nth(1)).to_contain_text("shadow started")


def test_similar_decisions_are_other_ones(standing, desk):
    """The decision about a request is shown as its answer, not beside it."""
    page = standing.window("ada")
    approve(page, desk.ask("https://alike.example/first"))
    number = desk.ask("https://alike.example/second")
    approve(page, number)
    similar = page.get_by_role("region", name="Similar decisions").get_by_role("listitem")
    expect(similar).to_have_count(1)
    expect(similar).to_contain_text("/first")
