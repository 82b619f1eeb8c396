"""Ended sessions: after the sign-in the form has its input again."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from democrai_sandbox.console.pages.parameters import read_draft, written_draft
from tests.console.pages.asking import decide
from tests.console.pages.reading import Page, form
from tests.console.serving import PASSWORD
from tests.console.sessions import enter
from tests.services.rows import rows

LONG = "".join(chr(0x1F300 + number % 700) for number in range(2000))
"""The longest reason there is, in characters that take most room."""


@pytest.fixture
def dora(served):
    """An administrator whose session a test ends."""
    person = served.person("dora", role="super")
    cookie, _ = enter(served.accounts, person.id)
    with served.client() as client:
        for name, value in cookie.items():
            client.cookies.set(name, value, domain=client.base_url.host)
        yield client


def end(served):
    served.accounts.end_all("dora")


def sign_in_after(client, answer):
    """Follow the redirect, sign in, and return the resulting page."""
    assert answer.status_code == 303
    place = urlsplit(answer.headers["location"])
    assert place.path == "/login"
    onward = parse_qs(place.query)["next"][0]
    signed_in = client.post("/login", data={"name": "dora", "password": PASSWORD, "next": onward})
    assert signed_in.status_code == 303
    return client.get(signed_in.headers["location"])


@rows("reason", ["Not from here.\nAsk again.", "<b>\u202e\"'", LONG])
def test_reason_and_choice_are_kept_and_nothing_is_decided(served, desk, dora, reason):
    """The form is restored, and the request is pending."""
    one = desk.ask("https://kept.example/v1/items/7")
    filled = {**form(dora.get(f"/requests/{one}"), "/decide"), "choice": "2", "lifetime": "86400", "reason": reason}
    end(served)
    answer = dora.post(f"/requests/{one}/decide", data={**filled, "act": "deny"})
    page = sign_in_after(dora, answer)
    assert page.url.path == f"/requests/{one}"
    again = form(page, "/decide")
    assert (again["choice"], again["lifetime"]) == ("2", "86400")
    assert again["reason"].replace("\r\n", "\n") == reason
    assert desk.state(one) == "pending"
    assert "Deny" in Page(page).parts("notice")[0]
    assert form(dora.get(f"/requests/{one}"), "/decide")["reason"] == ""
    assert dora.post(f"/requests/{one}/decide", data={**again, "act": "deny"}).status_code == 303
    assert desk.store.request(one).reason == reason.strip()


def test_the_page_that_confirms_leads_back_too(served, desk, dora):
    """The confirmation page is restored, without the password."""
    one = desk.ask("/srv/draft/high", operation="delete")
    asking = decide(dora, one, "permanent", confirmed="", reason="for the import")
    filled = {**form(asking, "/decide"), "password": PASSWORD}
    end(served)
    answer = dora.post(f"/requests/{one}/decide", data={**filled, "act": "permanent"})
    cookies = "".join(value for name, value in dora.cookies.items() if "draft" in name)
    assert PASSWORD not in str(read_draft(cookies))
    page = sign_in_after(dora, answer)
    assert form(page, "/decide")["reason"] == "for the import"
    assert desk.state(one) == "pending"


def test_a_note_and_the_reasons_of_other_pages_are_kept(served, desk, dora):
    """Notes and reasons of all forms are restored."""
    one, other = desk.ask(), desk.ask()
    made = decide(dora, other, "deny").headers["location"].rpartition("about=")[2]
    bulk = f"/requests/bulk?act=deny&ids={one}"
    for path, page, field in (
        (f"/requests/{one}/notes", f"/requests/{one}", "text"),
        (f"/decisions/{made}/revoke", f"/decisions/{made}/revoke", "reason"),
        (f"/decisions/{made}/approve", f"/decisions/{made}/approve", "reason"),
        (f"/requests/bulk/confirm?{bulk.partition('?')[2]}", bulk, "reason"),
    ):
        end(served)
        shown = sign_in_after(dora, dora.post(path, data={field: f"typed for {path}", "act": "deny", "ids": one}))
        assert str(shown.url).endswith(page)
        assert form(shown, urlsplit(path).path)[field] == f"typed for {path}"
    assert desk.state(one) == "pending"
    assert desk.store.decision(made).ended_at is None


def test_an_explanation_leads_back_to_its_question(served, dora):
    """The confirmation of an explanation is restored."""
    rule = {"subject": "module:weather", "access": "network:receive", "target": "https://unasked-draft.example/v1"}
    end(served)
    sent = {**rule, "effect": "denial", "reason": "not this", "confirmed": "yes", "seen": "0"}
    shown = sign_in_after(dora, dora.post("/explain/decide", data=sent))
    assert shown.url.path == "/explain"
    assert shown.url.params["target"] == rule["target"]
    asking = dora.post("/explain/decide", data={**rule, "effect": "denial"})
    assert form(asking, "/explain/decide")["reason"] == "not this"


def test_a_draft_is_for_its_page_alone(served, desk, dora):
    """Another request does not show it."""
    one, other = desk.ask(), desk.ask()
    filled = form(dora.get(f"/requests/{one}"), "/decide")
    end(served)
    answer = dora.post(f"/requests/{one}/decide", data={**filled, "act": "deny", "reason": "mine"})
    sign_in = dora.post("/login", data={"name": "dora", "password": PASSWORD, "next": f"/requests/{other}"})
    assert answer.status_code == sign_in.status_code == 303
    assert form(dora.get(f"/requests/{other}"), "/decide")["reason"] == ""
    assert form(dora.get(f"/requests/{one}"), "/decide")["reason"] == "mine"


@rows("text", ["", "x", "e30", "eJyrrgUAAXUA-Q", "a" * 20000, written_draft("/p", {"choice": "99", "lifetime": "x"})])
def test_a_cookie_that_somebody_made_up_fills_in_nothing(served, desk, ada, text):
    """A forged draft is validated like the form."""
    one = desk.ask()
    page = ada.get(f"/requests/{one}", headers={"Cookie": f"democrai_draft={text[:4000]}"})
    assert page.status_code in {200, 303}


def test_what_was_not_offered_is_not_filled_in(served, desk, ada):
    """Unknown choices and times are dropped."""
    one = desk.ask()
    text = written_draft(f"/requests/{one}", {"choice": "99", "lifetime": "1", "reason": "fine", "act": "other"})
    ada.cookies.set("democrai_draft", text)
    try:
        again = form(ada.get(f"/requests/{one}"), "/decide")
    finally:
        ada.cookies.delete("democrai_draft")
    assert (again["choice"], again["lifetime"], again["reason"]) == ("0", "", "fine")
