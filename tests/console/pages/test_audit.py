"""Pages of the audit log."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from democrai_sandbox.console.pages.accounts import differences
from tests.console.pages.asking import Desk
from tests.console.pages.reading import SOON, read
from tests.console.serving import serving
from tests.services.golden import sentence
from tests.services.rows import rows


@pytest.fixture(scope="module")
def admin(served):
    with served.bearer(served.administrator()) as machine:
        served.stop_weather(machine, "/forecast/audited")
    with served.signed_in() as client:
        yield client


def records(page):
    """The numbers of the listed records."""
    return [int(link.removeprefix("/audit/")) for link in page.links if link.removeprefix("/audit/").isdigit()]


def test_records_are_listed_the_latest_first(admin, served):
    """A request is listed with its target and links to its record."""
    with closing(Desk(served)) as desk:
        desk.ask("https://audited.example/v1")
    page = read(admin, "/audit")
    numbers = records(page)
    assert len(numbers) > 1
    assert numbers == sorted(numbers, reverse=True)
    assert "audited.example" in page.text
    assert "requested" in page.text


def test_a_long_list_has_pages(admin, served):
    """Each page continues after the previous one; new records do not shift it."""
    with closing(Desk(served)) as desk:
        for _ in range(70):
            desk.ask(subject="tool:many")
    first = read(admin, "/audit?subject=tool:many")
    link = next(link for link in first.links if "after=" in link)
    assert "subject=tool" in link, "the filter is kept"
    second = read(admin, link)
    assert len(records(first)) == 50
    assert len(records(second)) == 20
    assert max(records(second)) < min(records(first))


def test_the_list_is_narrowed(admin, served):
    """Action, actor, subject, request and time are filters."""
    with closing(Desk(served)) as desk:
        one = desk.ask(subject="tool:narrowed")
        desk.ask(subject="tool:narrowed")
    for query, number in (
        ("action=requested", 2),
        ("action=denied", 0),
        (f"request={one}", 1),
        ("actor=nobody-of-this-name", 0),
        ("until=2001-01-01", 0),
        ("since=2001-01-01T00:00", 2),
    ):
        assert len(records(read(admin, f"/audit?subject=tool:narrowed&{query}"))) == number, query
    assert not records(read(admin, "/audit?subject=tool:never-asked"))


@rows("query", ["action=eaten", "subject=reports", "since=yesterday", "until=2030-99-01", "after=%00"])
def test_a_filter_that_means_nothing_is_refused(admin, query):
    """The answer names the field."""
    page = read(admin, f"/audit?{query}", status=422)
    assert page.code == "invalid_input"
    assert f"/{query.partition('=')[0]}" in page.parts("trouble")[0]


def test_a_record_has_an_address_of_its_own(admin):
    """The page has the user, the values before and after, and the hashes."""
    number = records(read(admin, "/audit?action=requested&subject=module:weather"))[0]
    page = read(admin, f"/audit/{number}")
    assert str(number) in page.text
    assert "requested" in page.text
    assert "module:weather" in page.text
    assert "diff" in page.ids
    assert any(link.startswith("/requests/") for link in page.links)


@rows(("number", "status"), [("999999", 404), ("0", 404), ("x", 422), ("9" * 40, 422)])
def test_a_record_that_is_not_there(admin, number, status):
    """An unknown number is not found; another text is refused."""
    assert admin.get(f"/audit/{number}").status_code in {status, 404}


def test_the_export_takes_the_filter_along(admin):
    """The export links have the same filter."""
    page = read(admin, "/audit?action=requested&subject=module:weather&since=2001-01-01T00:00&request=")
    links = [link for link in page.links if link.startswith("/api/v1/audit/export")]
    assert len(links) == 2
    for link in links:
        answer = admin.get(link)
        assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in admin.get(next(link for link in links if "jsonl" in link)).text.splitlines()]
    assert lines
    assert {line["action"] for line in lines} == {"requested"}


def test_only_those_who_may_decide_see_it(served):
    """Other users get the reason."""
    served.person("nora")
    with served.signed_in("nora") as client:
        for path in ("/audit", "/audit/1"):
            assert read(client, path, status=403).code == "external_access_admin_required"
        assert client.post("/audit/verify").status_code == 403


def test_the_chain_is_checked_on_demand(tmp_path):
    """The page distinguishes an unverified, a valid and a broken chain."""
    with serving(tmp_path, extensions=False) as served, served.signed_in() as client:
        chain(client, "info", "not checked")
        chain(verified(client), "yes", "whole")
        with sqlite3.connect(tmp_path / "state" / "sandbox.db") as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
            for name in names:
                database.execute(f'DROP TRIGGER "{name}"')
            database.execute("UPDATE access_audit SET actor = 'somebody else' WHERE sequence = 1")
        database.close()
        assert "record 1:" in chain(verified(client), "no", "broken")


def verified(client):
    """Verify the chain."""
    assert client.post("/audit/verify").status_code == 303
    return client


def chain(client, look, name):
    """Return the text about the chain, which must have this style."""
    page = read(client, "/audit")
    (told,) = page.parts("spread")
    assert f'<section class="notice {look}" aria-label="Hash chain">' in page.source
    sentence(name, told, also=SOON)
    return told


def test_differences_are_told_by_name():
    """Added, removed and changed values come first."""
    found = {one.name: one.kind for one in differences({"a": 1, "b": "x", "c": [1]}, {"b": "y", "c": [1], "d": None})}
    assert found == {"a": "removed", "b": "changed", "d": "added", "c": "same"}
    assert list(found)[-1] == "c"
