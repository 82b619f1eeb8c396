"""Risk of requests in the browser."""

from __future__ import annotations

from playwright.sync_api import expect


def test_risky_targets_come_first_with_their_reasons(standing, desk):
    """Risky targets are listed before a harmless file, with their reasons."""
    subject = "module:weather-of-risk"
    wanted = [
        ("/srv/risk/harmless", "read", "low risk", "reads files"),
        ("https://xn--pypal-4ve.com/", "receive", "high risk", "mixes letters of several scripts"),
        ("http://plain.example/", "send", "high risk", "is not encrypted"),
        ("/", "read", "high risk", "covers every file of the machine"),
        ("/etc/shadow", "read", "high risk", "contains keys, passwords or other credentials"),
    ]
    ids = [desk.ask(target, subject=subject, operation=operation) for target, operation, _, _ in wanted]
    harmless = desk.ask(subject=subject)
    page = standing.window("ada")
    page.goto(f"/requests?subject={subject}")
    rows = page.locator("table.queue tbody tr")
    shown = [row.get_attribute("data-id") for row in rows.all()]
    assert shown == [*reversed(ids[1:]), harmless, ids[0]]
    for one, (_, _, level, reason) in zip(ids, wanted, strict=True):
        row = page.locator(f"tr[data-id='{one}']")
        expect(row).to_contain_text(level)
        expect(row).to_contain_text(reason)
        page.goto(f"/requests/{one}")
        expect(page.locator("section.asked")).to_contain_text(reason)
        page.goto(f"/requests?subject={subject}")
