"""Forms carry the shown version; if it is outdated, nothing is done."""

from __future__ import annotations

from datetime import UTC, datetime

from democrai_sandbox.access.values import DecisionEffect, DecisionFilter, DecisionScope, NewDecision, PageRequest
from tests.console.pages.asking import decide
from tests.console.pages.reading import Page as Shown
from tests.console.pages.reading import form


def live(desk, text):
    """The decisions in force about targets that contain a text."""
    return desk.store.decisions(DecisionFilter(text=text), PageRequest()).items


def revoked(desk, ada, target):
    """The id of a revoked approval."""
    one = decide(ada, desk.ask(target), "permanent").headers["location"].rpartition("about=")[2]
    assert ada.post(f"/decisions/{one}/revoke").status_code == 303
    return one


def deny(desk, access, by="bob"):
    """Deny an access, as another administrator."""
    new = NewDecision(access, DecisionEffect.DENIAL, DecisionScope.PERMANENT, by)
    return desk.store.decide(new, now=datetime.now(UTC))


def test_a_stale_form_does_not_end_a_newer_denial(desk, ada):
    """The newer denial stays, and the page names it."""
    one = revoked(desk, ada, "https://stale-approve.example/v1")
    filled = form(ada.get(f"/decisions/{one}/approve"), "/approve")
    denial = deny(desk, desk.store.decision(one).access)
    answer = ada.post(f"/decisions/{one}/approve", data=filled)
    assert answer.status_code == 409
    assert [found.id for found in live(desk, "stale-approve.example")] == [denial.id]
    assert "bob" in Shown(answer).text


def test_a_form_that_is_sent_twice_approves_once(desk, ada):
    """The second submission is a conflict."""
    one = revoked(desk, ada, "https://twice.example/v1")
    filled = form(ada.get(f"/decisions/{one}/approve"), "/approve")
    assert ada.post(f"/decisions/{one}/approve", data=filled).status_code == 303
    (first,) = live(desk, "twice.example")
    assert ada.post(f"/decisions/{one}/approve", data=filled).status_code == 409
    assert live(desk, "twice.example") == (first,)


def test_a_stale_unasked_decision_does_not_end_a_newer_denial(desk, ada):
    """The same for decisions from an explanation."""
    access = desk.store.request(desk.ask("https://stale-explained.example/v1")).access
    rule = {"subject": str(access.subject), "access": "network:receive", "target": access.target, "effect": "approval"}
    filled = form(ada.post("/explain/decide", data=rule), "/explain/decide")
    denial = deny(desk, access)
    answer = ada.post("/explain/decide", data={**filled, "confirmed": "yes"})
    assert answer.status_code == 409
    assert [found.id for found in live(desk, "stale-explained.example")] == [denial.id]


def test_a_request_whose_choice_was_decided_meanwhile_is_a_conflict(desk, ada):
    """A newer approval for another session makes the form outdated."""
    target = "https://stale-request.example/v1"
    one, other = desk.ask(target, session="first"), desk.ask(target, session="second")
    filled = form(ada.get(f"/requests/{one}"), "/decide")
    assert decide(ada, other, "session").status_code == 303
    answer = ada.post(f"/requests/{one}/decide", data={**filled, "act": "deny"})
    assert answer.status_code == 409
    assert desk.state(one) == "pending"


def test_a_form_without_its_state_decides_nothing(desk, ada):
    """A form without a version is outdated."""
    one = desk.ask()
    for seen in ({}, {"seen": ""}, {"seen": "x"}, {"seen": "0,"}, {"seen": "9" * 50}):
        answer = ada.post(f"/requests/{one}/decide", data={"act": "deny", "choice": "0", **seen})
        assert answer.status_code == 409, seen
        assert desk.state(one) == "pending"


def test_a_stale_role_form_does_not_give_the_role_back(served, ada):
    """An outdated form cannot restore a removed role."""
    served.person("vera", role="super")
    page = ada.get("/people")
    filled = form(page, "/people/vera/role")
    served.accounts.set_role("vera", role="", organization_id="", actor="bob")
    answer = ada.post("/people/vera/role", data=filled)
    assert answer.status_code == 409
    assert served.accounts.person("vera").role == ""
