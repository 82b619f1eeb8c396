"""A hostile module: its texts are escaped on every page."""

from __future__ import annotations

import pytest

from tests.console.pages.reading import Page, read, run
from tests.console.serving import until
from tests.services.rows import rows


@pytest.fixture(scope="module")
def visited(served):
    """An administrator who looks at the hostile module."""
    with served.signed_in() as client:
        yield client


def is_harmless(page):
    """The page has no markup, reordering or hiding characters of the module."""
    assert "<script>alert" not in page.source
    assert "<img" not in page.source.replace('<img src="/static', "")
    assert not [mark for mark in "\u202e\u200b\u2066\x1b" if mark in page.source]


def test_it_loads_or_says_why_not(visited):
    """The module and a folder with a misleading name are listed visibly."""
    page = read(visited, "/extensions")
    is_harmless(page)
    assert "hostile" in page.text


@rows("name", ["fail", "speak", "bytes"])
def test_what_it_returns_and_raises_is_text(visited, name):
    """Results, errors and tracebacks are escaped."""
    page = Page(run(visited, "hostile", "action", name))
    assert page.status in {200, 502}, page.text
    is_harmless(page)


def test_what_it_shows_is_data(visited):
    """Markup in a render is shown as data."""
    page = Page(run(visited, "hostile", "render", "render"))
    assert page.status == 200
    is_harmless(page)
    assert "<script>alert(1)</script>" in page.text
    assert "U+202E" in page.text


def test_a_manifest_that_was_refused_can_be_read(visited):
    """All problems are listed, and invisible characters marked."""
    page = read(visited, "/extensions/module/crooked")
    is_harmless(page)
    assert "RIGHT-TO-LEFT OVERRIDE" in page.source
    assert "/version" in page.text


def test_its_own_page_holds_its_output(visited):
    """Its output is shown."""
    run(visited, "hostile", "action", "speak")
    page = until(lambda: (found := read(visited, "/extensions/module/hostile")) and "U+001B" in found.text and found)
    is_harmless(page)
    assert "RIGHT-TO-LEFT OVERRIDE" in page.source


def test_what_it_tried_is_shown_where_it_is_compared(visited):
    """Undecodable and misleading file names do not break the page."""
    run(visited, "hostile", "action", "bytes")
    page = until(lambda: (found := read(visited, "/subjects/module/hostile")) and "/etc/" in found.text and found)
    is_harmless(page)
    for link in page.links:
        if link.startswith("/explain?"):
            explained = visited.get(link)
            assert explained.status_code in {200, 422}
            is_harmless(Page(explained))


def test_a_long_target_keeps_its_host(visited):
    """The host stays readable; the audit record has the whole target."""
    url = f"https://{'a' * 60}.example.com/" + "b/" * 900
    Page(run(visited, "hostile", "action", "far", url=url))
    for path in ("/subjects/module/hostile", "/audit"):
        page = read(visited, path)
        assert f"{'a' * 60}.example.com" in page.text
        is_harmless(page)


def test_its_tasks_are_told_as_text(visited):
    """Progress and failure of a task are escaped."""
    answer = run(visited, "hostile", "task", "sleep")
    assert answer.status_code == 303
    path = answer.headers["location"]
    page = until(lambda: (found := read(visited, path)) and "ValueError" in found.text and found)
    is_harmless(page)
    is_harmless(read(visited, "/tasks"))
