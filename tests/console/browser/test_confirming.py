"""Permanent approvals in the browser: preview, confirmation, result and undo."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.console.serving import PASSWORD


def test_one_click_grants_nothing_and_the_second_says_what_it_granted(people, desk):
    """Without JavaScript, the effect is shown before and after, and can be undone."""
    target = "https://granted.example/v1"
    ids = [desk.ask(target, user=user, session=user) for user in ("uma", "ben", "cleo")]
    page = people.window("ada", java_script_enabled=False)
    page.goto(f"/requests/{ids[0]}")
    expect(page.get_by_role("group", name="Target of the decision")).to_contain_text("2 other pending requests")
    page.get_by_role("button", name="Approve permanently").click()
    effect = page.locator(".effect")
    expect(effect).to_contain_text("every user")
    expect(effect).to_contain_text("2 other pending")
    assert {desk.state(one) for one in ids} == {"pending"}
    page.get_by_role("button", name="Approve this rule permanently").click()
    said = page.get_by_role("status").first
    expect(said).to_contain_text("every user")
    expect(said).to_contain_text("2 other requests")
    assert {desk.state(one) for one in ids} == {"approved"}
    said.get_by_role("link", name="Undo").click()
    expect(page.get_by_role("main")).to_contain_text("3 requests")
    page.get_by_role("button", name="Undo the approval").click()
    expect(page.get_by_role("button", name="Deny")).to_be_visible()
    assert {desk.state(one) for one in ids} == {"pending"}


def test_a_high_risk_takes_the_password_on_the_same_page(people, served, desk):
    """A wrong password is an error of its field, and the input is kept."""
    served.person("pia", role="super")
    one = desk.ask("/srv/browser/table.csv", operation="delete")
    page = people.window("pia")
    page.goto(f"/requests/{one}")
    page.get_by_label("Reason").fill("For the import.")
    page.get_by_role("button", name="Approve permanently").click()
    page.get_by_label("Your password").fill("not this one")
    page.get_by_role("button", name="Approve this rule permanently").click()
    expect(page.get_by_label("Your password")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_role("main")).to_contain_text("For the import.")
    assert desk.state(one) == "pending"
    page.get_by_label("Your password").fill(PASSWORD)
    page.get_by_role("button", name="Approve this rule permanently").click()
    expect(page.get_by_role("status").first).to_contain_text("Approved permanently")
    assert desk.store.request(one).reason == "For the import."


def test_choices_are_named_by_what_they_cover(standing, desk, tmp_path):
    """File and folder are named in the choice and in the confirmation."""
    file = tmp_path / "named.csv"
    file.touch()
    one = desk.ask(str(file), operation="read")
    page = standing.window("ada")
    page.goto(f"/requests/{one}")
    choices = page.get_by_role("group", name="Target of the decision").locator("label")
    expect(choices.first).to_contain_text(f"The file {file}")
    expect(choices.first).not_to_contain_text("everything")
    expect(choices.nth(1)).to_contain_text(f"The folder {tmp_path}")
    page.get_by_role("button", name="Approve permanently").click()
    expect(page.locator(".effect")).to_contain_text(f"the file {file}")
