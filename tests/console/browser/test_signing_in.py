"""Signing in and out, as a person does it."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.console.serving import PASSWORD


def sign_in(page, name, password):
    page.goto("/requests")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def test_the_first_administrator_signs_in_with_what_the_start_printed(people, served):
    """A person who opens the console is asked to sign in, and then sees what waits."""
    page = people.window()
    sign_in(page, served.admin, served.password)
    expect(page.get_by_role("heading", level=1)).to_have_text("Requests")
    page.get_by_role("button", name="Sign out").click()
    page.goto("/requests")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_wrong_password_says_no_more_than_that(people, served):
    """Whether the name exists is not told."""
    served.person("wanda", role="super")
    page = people.window()
    said = []
    for name in ("wanda", "nobody-of-this-name"):
        sign_in(page, name, "not the password at all")
        said.append(page.get_by_role("alert").inner_text())
    assert said[0] == said[1]
    sign_in(page, "wanda", PASSWORD)
    expect(page.get_by_role("heading", level=1)).to_have_text("Requests")


def test_somebody_who_guesses_has_to_wait(people, served):
    """After some failures the page says how long to wait, and the right password does not help before."""
    served.person("tess")
    page = people.window()
    for _ in range(8):
        sign_in(page, "tess", "a guess that is wrong")
    expect(page.get_by_role("alert")).to_contain_text("second")
