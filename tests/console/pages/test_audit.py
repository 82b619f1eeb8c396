"""The pages about the audit."""

from __future__ import annotations

import json
import sqlite3

import pytest

from democrai_sandbox.console.pages.audit import differences
from tests.console.pages.asking import Desk
from tests.console.pages.reading import read
from tests.console.serving import serving


@pytest.fixture(scope="module")
def admin(served):
    with served.bearer(served.administrator()) as machine:
        served.stop_weather(machine)
    with served.signed_in() as client:
        yield client


def records(page):
    """The numbers of the records that a page lists."""
    return [int(link.removeprefix("/audit/")) for link in page.links if link.removeprefix("/audit/").isdigit()]


def test_records_are_listed_the_latest_first(admin):
    """What was asked for is there with its target and leads to its record."""
    page = read(admin, "/audit")
    numbers = records(page)
    assert numbers == sorted(numbers, reverse=True)
    assert "/forecast/today" in page.text
    assert "requested" in page.text


def test_a_long_list_has_pages(admin, served):
    """Each page goes on where the one before ended; what is recorded meanwhile moves nothing."""
    desk = Desk(served)
    for _ in range(70):
        desk.ask(subject="tool:many")
    desk.close()
    first = read(admin, "/audit?subject=tool:many")
    link = next(link for link in first.links if "after=" in link)
    assert "subject=tool" in link, "the filter is kept"
    second = read(admin, link)
    assert len(records(first)) == 50
    assert len(records(second)) == 20
    assert max(records(second)) < min(records(first))


def test_the_list_is_narrowed(admin):
    """Action, actor, subject, request and time are filters of the address."""
    assert records(read(admin, "/audit?action=requested&subject=module:weather"))
    assert not records(read(admin, "/audit?action=denied"))
    assert not records(read(admin, "/audit?actor=nobody-of-this-name"))
    assert not records(read(admin, "/audit?until=2001-01-01"))
    assert records(read(admin, "/audit?since=2001-01-01T00:00"))


@pytest.mark.parametrize(
    "query", ["action=eaten", "subject=reports", "since=yesterday", "until=2030-99-01", "after=%00"]
)
def test_a_filter_that_means_nothing_is_refused(admin, query):
    """The answer names the field."""
    page = read(admin, f"/audit?{query}", status=422)
    assert query.partition("=")[0] in page.text or "page" in page.text


def test_a_record_has_an_address_of_its_own(admin):
    """Who, what, before and after, and its place in the chain are on it."""
    number = records(read(admin, "/audit?action=requested&subject=module:weather"))[0]
    page = read(admin, f"/audit/{number}")
    assert f"Record {number}: requested" in page.text
    assert "module:weather" in page.text
    assert "Before and after" in page.text
    assert any(link.startswith("/requests/") for link in page.links)


@pytest.mark.parametrize(("number", "status"), [("999999", 404), ("0", 404), ("x", 422), ("9" * 40, 422)])
def test_a_record_that_is_not_there(admin, number, status):
    """A number that no record has is not found; what is no number is refused."""
    assert admin.get(f"/audit/{number}").status_code in {status, 404}


def test_the_export_takes_the_filter_along(admin):
    """The links lead to the export of the same records, which the API serves."""
    page = read(admin, "/audit?action=requested&since=2001-01-01T00:00&request=")
    links = [link for link in page.links if link.startswith("/api/v1/audit/export")]
    assert len(links) == 2
    for link in links:
        answer = admin.get(link)
        assert answer.status_code == 200, answer.text
    lines = [json.loads(line) for line in admin.get(next(link for link in links if "jsonl" in link)).text.splitlines()]
    assert lines
    assert {line["action"] for line in lines} == {"requested"}


def test_the_chain_is_checked_on_demand(admin):
    """Until somebody asks, the page says that nobody did; afterwards, up to where it is whole."""
    assert "was not checked" in read(admin, "/audit").text
    assert admin.post("/audit/verify").status_code == 303
    assert "whole up to record" in read(admin, "/audit").text


def test_only_those_who_may_decide_see_it(served):
    """Everybody else is told why not."""
    served.person("nora")
    with served.signed_in("nora") as client:
        for path in ("/audit", "/audit/1"):
            assert "people who may decide" in read(client, path, status=403).text
        assert client.post("/audit/verify").status_code == 403


def test_a_chain_that_was_tampered_with_is_found(tmp_path):
    """A record that somebody changed in the database breaks the chain, at its number."""
    with serving(tmp_path, extensions=False) as served, served.signed_in() as client:
        with sqlite3.connect(tmp_path / "state" / "sandbox.db") as database:
            names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
            for name in names:
                database.execute(f'DROP TRIGGER "{name}"')
            database.execute("UPDATE access_audit SET actor = 'somebody else' WHERE sequence = 1")
        database.close()
        client.post("/audit/verify")
        assert "breaks at record 1" in read(client, "/audit").text


def test_differences_are_told_by_name():
    """What was added, removed and changed comes first; what stayed comes last."""
    found = {one.name: one.kind for one in differences({"a": 1, "b": "x", "c": [1]}, {"b": "y", "c": [1], "d": None})}
    assert found == {"a": "removed", "b": "changed", "d": "added", "c": "same"}
    assert list(found)[-1] == "c"
