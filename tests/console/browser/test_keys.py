"""Keyboard use of the queue and of a request, and updates of open pages."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.console.serving import until


def places(page):
    """The vertical position of every row."""
    return page.evaluate(
        "[...document.querySelectorAll('table.rows tbody tr')]"
        ".map((row) => [row.dataset.id, row.getBoundingClientRect().top + scrollY])"
    )


# ---- keys ------------------------------------------------------------------------------------------------------------


def test_rows_are_walked_opened_and_selected_by_key(standing, desk):
    """j and k move, x selects, o and Enter open."""
    for number in range(3):
        desk.ask(f"https://keys.example/v1/{number}")
    page = standing.window("ada")
    page.goto("/requests?text=keys.example")
    links = page.get_by_role("row").get_by_role("link").filter(has_text="keys.example")
    for key, at in (("j", 0), ("j", 1), ("j", 2), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        expect(links.nth(at)).to_be_focused()
    page.keyboard.press("x")
    expect(page.get_by_role("checkbox").nth(1)).to_be_checked()
    second = links.nth(1).get_attribute("href")
    page.keyboard.press("o")
    page.wait_for_url(f"**{second}")
    page.go_back()
    page.keyboard.press("j")
    first = links.nth(0).get_attribute("href")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{first}")


def test_search_and_help_have_keys(standing, desk):
    """/ focuses the search, ? shows the shortcuts, and Escape closes them."""
    desk.ask("https://searched.example/v1")
    page = standing.window("ada")
    page.goto("/requests")
    page.keyboard.press("/")
    expect(page.get_by_label("Target contains")).to_be_focused()
    page.keyboard.type("searched.example?jkx")
    expect(page.get_by_label("Target contains")).to_have_value("searched.example?jkx")
    page.get_by_label("Target contains").fill("searched.example")
    page.keyboard.press("Enter")
    page.wait_for_url("**text=searched.example*")
    expect(page.get_by_role("row").filter(has_text="searched.example")).to_have_count(1)
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_hidden()


@pytest.mark.parametrize(
    ("key", "label", "state"),
    [("s", "Approve for this session", "approved_for_session"), ("d", "Deny", "denied")],
)
def test_a_decision_by_key_asks_first(standing, desk, key, label, state):
    """s and d ask, with the focus on the neutral button."""
    one = desk.ask()
    page = standing.window("ada")
    page.goto(f"/requests/{one}")
    dialog = page.get_by_role("dialog", name=f"{label}?")
    for leaving in ("Enter", "Escape"):
        page.keyboard.press(key)
        expect(dialog).to_be_visible()
        expect(dialog.get_by_role("button", name="Back")).to_be_focused()
        page.keyboard.press(leaving)
        expect(dialog).to_be_hidden()
    assert desk.state(one) == "pending"
    page.keyboard.press(key)
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("button", name=label)).to_be_focused()
    page.keyboard.press("Enter")
    page.wait_for_url("**done=*")
    assert desk.state(one) == state


def test_a_permanent_approval_by_key_is_confirmed_on_its_page(standing, desk):
    """a opens the confirmation page; going back decides nothing."""
    one = desk.ask()
    page = standing.window("ada")
    page.goto(f"/requests/{one}")
    page.keyboard.press("a")
    expect(page.get_by_role("button", name="Approve this rule permanently")).to_be_visible()
    page.keyboard.press("Enter")
    assert desk.state(one) == "pending"
    page.get_by_role("button", name="Approve this rule permanently").click()
    page.wait_for_url("**done=*")
    assert desk.state(one) == "approved"


def test_enter_decides_nothing(standing, desk):
    """Enter in a field or on a choice leaves the request undecided."""
    one = desk.ask("https://enter.example/v1/items")
    page = standing.window("ada")
    page.goto(f"/requests/{one}")
    page.keyboard.press("Enter")
    page.get_by_label("Reason").fill("because")
    page.get_by_label("Reason").press("Enter")
    page.get_by_label("Reason").press("Control+Enter")
    page.get_by_label("ends after").press("Enter")
    page.keyboard.press("Escape")
    assert page.url.endswith(one)
    # The browser sends a form by Enter on a choice, with its first button: one that decides nothing.
    page.get_by_role("radio").last.check()
    page.get_by_role("radio").last.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_role("button", name="Deny")).to_be_enabled()
    assert desk.state(one) == "pending"


def test_the_first_stop_of_the_keyboard_is_the_way_to_the_content(standing):
    """The first Tab stop skips the navigation."""
    page = standing.window("ada")
    page.goto("/requests")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()


def test_colours_are_chosen_and_remembered(people):
    """The button switches the colors, and the next page keeps them."""
    page = people.window("ada")
    page.goto("/requests")
    button = page.get_by_role("button", name="Colors")
    for name in ("light", "dark"):
        button.click()
        expect(button).to_contain_text(name)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.goto("/approvals")
    expect(page.get_by_role("button", name="Colors")).to_contain_text("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    page.get_by_role("button", name="Colors").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


# ---- live ------------------------------------------------------------------------------------------------------------


def test_new_requests_are_told_and_no_row_moves(standing, desk):
    """New requests are counted in a live region; rows do not move."""
    for number in range(2):
        desk.ask(f"https://live.example/v1/{number}")
    page = standing.window("ada")
    page.goto("/requests?text=live.example")
    page.get_by_role("checkbox").last.check()
    page.get_by_role("row").last.hover()
    before = places(page)
    assert len(before) == 2
    desk.ask("https://live.example/v1/new", operation="send")
    told = page.get_by_role("status").filter(has_text="1 new request")
    expect(told).to_be_visible()
    assert places(page) == before
    expect(page.get_by_role("checkbox").last).to_be_checked()
    desk.ask("https://elsewhere.example/v1/not-of-this-list")
    desk.ask("https://live.example/v1/newer")
    expect(page.get_by_role("status").filter(has_text="2 new requests")).to_be_visible()
    assert places(page) == before
    page.get_by_role("status").get_by_role("link", name="show").click()
    expect(page.get_by_role("row").filter(has_text="live.example")).to_have_count(4)


def test_a_row_that_a_colleague_decides_says_so_in_its_place(standing, desk):
    """The row shows the decision and cannot be selected."""
    ids = [desk.ask(f"https://decided.example/v1/{number}") for number in range(3)]
    ada, bob = standing.window("ada"), standing.window("bob")
    bob.goto("/requests?text=decided.example")
    bob.get_by_role("checkbox", name="v1/1").check()
    before = [row for row, _ in places(bob)]
    ada.goto(f"/requests/{ids[1]}")
    ada.get_by_role("button", name="Deny").click()
    row = bob.get_by_role("row").filter(has_text="v1/1")
    expect(row).to_contain_text(re.compile("denied.* ada"))
    assert [row for row, _ in places(bob)] == before
    expect(bob.get_by_role("checkbox", name="v1/1")).to_be_disabled()
    expect(bob.get_by_role("checkbox", name="v1/1")).not_to_be_checked()
    until(lambda: desk.state(ids[1]) == "denied")


def test_an_open_page_says_that_its_session_is_over(people, served, desk):
    """An open page reports the end of its session."""
    served.person("lena", role="super")
    page = people.window("lena")
    page.goto("/requests")
    served.accounts.end_all("lena")
    desk.ask("https://over.example/v1")
    expect(page.get_by_role("status").get_by_role("link", name="sign in")).to_be_visible()
