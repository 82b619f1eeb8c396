"""Sessions that end during a decision, in the browser."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.console.browser.test_signing_in import sign_in
from tests.console.serving import PASSWORD

REASON = "Not from this host.\nUse the mirror."


def fill(page, one):
    """Open a request, write a reason and choose a target."""
    page.goto(f"/requests/{one}")
    page.get_by_label("Reason").fill(REASON)
    page.get_by_role("radio").nth(1).check()
    page.get_by_label("ends after").select_option("7 days")


def expect_filled(page, one):
    """Wait for the request with the restored form."""
    page.wait_for_url(f"**/requests/{one}*")
    expect(page.get_by_label("Reason")).to_have_value(REASON)
    expect(page.get_by_role("radio").nth(1)).to_be_checked()
    expect(page.get_by_label("ends after")).to_have_value("604800")


@pytest.mark.parametrize("scripts", [True, False])
def test_a_decision_after_the_session_ended_is_not_lost(people, served, desk, scripts):
    """After the sign-in the form is restored, and nothing was decided."""
    name = f"dana{scripts:d}"
    served.person(name, role="super")
    one = desk.ask(f"https://session-ended.example/v{scripts:d}/items")
    page = people.window(name, **({} if scripts else {"java_script_enabled": False}))
    fill(page, one)
    served.accounts.end_all(name)
    page.get_by_role("button", name="Deny").click()
    page.wait_for_url("**/login**")
    sign_in(page, name, PASSWORD)
    expect_filled(page, one)
    expect(page.get_by_role("alert")).to_contain_text("Nothing was decided")
    assert desk.state(one) == "pending"
    page.get_by_role("button", name="Deny").click()
    expect(page.get_by_role("status").first).to_contain_text("Denied")
    assert desk.store.request(one).reason.replace("\r", "") == REASON


def test_the_link_to_sign_in_loses_nothing_either(people, served, desk):
    """The sign-in link of an open page restores the form."""
    served.person("dina", role="super")
    one = desk.ask("https://signed-out.example/v1/items")
    page = people.window("dina")
    fill(page, one)
    served.accounts.end_all("dina")
    desk.ask("https://signed-out.example/another")  # the open page looks for news
    page.locator("#news").get_by_role("link", name="sign in").click()
    sign_in(page, "dina", PASSWORD)
    expect_filled(page, one)
    assert desk.state(one) == "pending"
    page.goto(f"/requests/{one}")
    expect(page.get_by_label("Reason")).to_have_value("")
