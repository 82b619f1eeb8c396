"""Sign-in and sign-out in the browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial

from playwright.sync_api import expect

from democrai_sandbox.console.render import MESSAGES
from democrai_sandbox.errors import SignInThrottled
from democrai_sandbox.host.accounts import store
from tests.console.serving import PASSWORD
from tests.console.sessions import enter


def sign_in(page, name, password):
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def fail_often(accounts, name):
    """Count failures without comparing passwords, until the waiting time is minutes."""
    now = datetime.now(UTC)
    for _ in range(15):
        row = partial(store.begin_sign_in, name=name, address="127.0.0.1", now=now)
        try:
            accounts._database.act(row)
        except SignInThrottled as error:
            now += (error.retry_after + 1) * (datetime.resolution * 1_000_000)


def test_the_first_administrator_signs_in_with_what_the_start_printed(people, served):
    """The sign-in returns to the requested page; sign-out works."""
    page = people.window()
    page.goto("/approvals?scope=session")
    sign_in(page, served.admin, served.password)
    expect(page.get_by_role("heading", level=1)).to_have_text("Approvals")
    expect(page.get_by_label("Scope")).to_have_value("session")
    page.get_by_role("button", name="Sign out").click()
    page.goto("/requests")
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_wrong_password_says_no_more_than_that(people, served):
    """The page does not reveal whether the name exists."""
    served.person("wanda", role="super")
    page = people.window()
    page.goto("/requests")
    said = []
    for name in ("nobody-of-this-name", "wanda"):
        sign_in(page, name, "not the password at all")
        said.append(page.get_by_role("alert").inner_text())
    assert said[0] == said[1]
    sign_in(page, "wanda", PASSWORD)
    expect(page.get_by_role("heading", level=1)).to_have_text("Requests")


def test_somebody_who_guesses_has_to_wait(people, served):
    """After failures the page shows the waiting time, also for the right password."""
    served.person("tess")
    fail_often(served.accounts, "tess")
    page = people.window()
    page.goto("/login")
    sign_in(page, "tess", PASSWORD)
    expect(page.get_by_role("alert")).to_contain_text(re.compile(r"\d+ (second|minute)"))
    expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_session_is_ended_from_another_browser(people, served):
    """A session ended on the account page is signed out at its next step."""
    served.person("sally")
    elsewhere, here = people.window("sally"), people.window("sally")
    elsewhere.goto("/requests")
    expect(elsewhere.get_by_role("heading", level=1)).to_have_text("Your requests")
    here.goto("/account")
    sessions = here.get_by_role("table", name="Sessions")
    assert sessions.get_by_role("row").count() == 3  # with the heads of the columns
    sessions.get_by_role("button", name="End the session").click()
    expect(here.get_by_role("status").first).to_contain_text(MESSAGES["session_ended"])
    assert here.get_by_role("table", name="Sessions").get_by_role("row").count() == 2
    elsewhere.reload()
    expect(elsewhere.get_by_role("button", name="Sign in")).to_be_visible()
    here.get_by_role("button", name="Sign out everywhere").click()
    here.goto("/requests")
    expect(here.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_person_is_added_and_shut_out(people, served):
    """A new user gets a password, shown once; disabling the user ends the session."""
    page = people.window("ada")
    page.goto("/people")
    page.get_by_label("Name", exact=False).last.fill("nora")
    page.get_by_role("button", name="Add the user").click()
    expect(page.get_by_role("main")).to_contain_text("nora")
    page.goto("/people")
    hers = people.window()
    cookie, _ = enter(served.accounts, "nora")
    hers.context.add_cookies([{"name": key, "value": value, "url": served.url} for key, value in cookie.items()])
    hers.goto("/requests")
    expect(hers.get_by_role("heading", level=1)).to_have_text("Your requests")
    page.get_by_text("Change nora").click()
    page.get_by_role("row", name="nora").get_by_role("button", name="Disable").click()
    expect(page.get_by_role("row", name="nora")).to_contain_text("disabled")
    hers.reload()
    expect(hers.get_by_role("button", name="Sign in")).to_be_visible()


def test_a_token_is_shown_once_and_revoked(people, served):
    """The secret is shown once, works, and stops working after the revocation."""
    page = people.window("ada")
    page.goto("/account")
    page.get_by_label("Label").fill("nightly job")
    page.get_by_label("requests:read").check()
    page.get_by_role("button", name="Create the token").click()
    secret = next(word for word in page.get_by_role("main").inner_text().split() if word.startswith("dsb_"))
    with served.client() as job:
        job.headers["Authorization"] = f"Bearer {secret}"
        assert job.get("/api/v1/requests").status_code == 200
        page.goto("/account")
        assert secret not in page.content()
        page.get_by_role("row", name="nightly job").get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("row", name="nightly job")).to_contain_text("ended")
        assert job.get("/api/v1/requests").status_code == 401
