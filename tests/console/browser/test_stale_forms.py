"""Outdated pages after a decision of another administrator."""

from __future__ import annotations

from datetime import UTC, datetime

from playwright.sync_api import expect

from democrai_sandbox.access.values import DecisionEffect, DecisionFilter, DecisionScope, NewDecision, PageRequest


def live(desk, text):
    """The decisions in force about targets that contain a text."""
    return [
        (one.effect, one.created_by) for one in desk.store.decisions(DecisionFilter(text=text), PageRequest()).items
    ]


def store(desk, access, effect, by):
    """Store a decision of another administrator."""
    return desk.store.decide(NewDecision(access, effect, DecisionScope.PERMANENT, by), now=datetime.now(UTC))


def test_a_page_left_open_does_not_end_a_newer_denial(standing, desk):
    """The outdated approval is a conflict, and the denial stays."""
    access = desk.store.request(desk.ask("https://left-open.example/v1")).access
    before = store(desk, access, DecisionEffect.DENIAL, "ada")
    page = standing.window("ada")
    page.goto(f"/decisions/{before.id}/approve")
    store(desk, access, DecisionEffect.DENIAL, "bob")
    page.get_by_role("button", name="Approve permanently").click()
    expect(page.get_by_role("alert")).to_contain_text("bob")
    assert live(desk, "left-open.example") == [("denial", "bob")]


def test_going_back_and_sending_again_approves_once(standing, desk):
    """A form in the browser history is outdated."""
    access = desk.store.request(desk.ask("https://sent-twice.example/v1")).access
    before = store(desk, access, DecisionEffect.DENIAL, "bob")
    page = standing.window("ada")
    page.goto(f"/decisions/{before.id}/approve")
    seen = page.locator('input[name="seen"]').get_attribute("value")
    page.get_by_role("button", name="Approve permanently").click()
    expect(page.get_by_role("status").first).to_be_visible()
    (first,) = desk.store.decisions(DecisionFilter(text="sent-twice.example"), PageRequest()).items
    page.goto(f"/decisions/{before.id}/approve")
    page.locator('input[name="seen"]').evaluate("(field, seen) => { field.value = seen; }", seen)
    page.get_by_role("button", name="Approve permanently").click()
    expect(page.get_by_role("alert")).to_contain_text("Nothing was changed")
    assert desk.store.decisions(DecisionFilter(text="sent-twice.example"), PageRequest()).items == (first,)
