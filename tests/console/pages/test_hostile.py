"""A module that tries to get at whoever looks at it: its texts are on every page, and do nothing there."""

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
    """Neither markup of the module nor what reorders or hides the text around it is on the page."""
    assert "<script>alert" not in page.source
    assert "<img" not in page.source.replace('<img src="/static', "")
    assert not [mark for mark in "\u202e\u200b\u2066\x1b" if mark in page.source]


def test_it_loads_or_says_why_not(visited):
    """The module, and the folder with a name that hides something, are listed; their texts are made visible."""
    page = read(visited, "/extensions")
    is_harmless(page)
    assert "hostile" in page.text


@rows("name", ["fail", "speak", "bytes"])
def test_what_it_returns_and_raises_is_text(visited, name):
    """Results, errors and tracebacks are shown with everything visible."""
    page = Page(run(visited, "hostile", "action", name))
    assert page.status in {200, 502}, page.text
    is_harmless(page)


def test_what_it_shows_is_data(visited):
    """A render that returns markup is shown as the data it is."""
    page = Page(run(visited, "hostile", "render", "render"))
    assert page.status == 200
    is_harmless(page)
    assert "<script>alert(1)</script>" in page.text
    assert "U+202E" in page.text


def test_a_manifest_that_was_refused_can_be_read(visited):
    """Everything that is wrong with it is said, and the file is shown with what it hides."""
    page = read(visited, "/extensions/module/crooked")
    is_harmless(page)
    assert "RIGHT-TO-LEFT OVERRIDE" in page.source
    assert "/version" in page.text


def test_its_own_page_holds_its_output(visited):
    """What it printed can be read there."""
    run(visited, "hostile", "action", "speak")
    page = until(lambda: (found := read(visited, "/extensions/module/hostile")) and "U+001B" in found.text and found)
    is_harmless(page)
    assert "RIGHT-TO-LEFT OVERRIDE" in page.source


def test_what_it_tried_is_shown_where_it_is_compared(visited):
    """A file name that is no text at all, and one full of marks, do not break the page of the subject."""
    run(visited, "hostile", "action", "bytes")
    page = until(lambda: (found := read(visited, "/subjects/module/hostile")) and "/etc/" in found.text and found)
    is_harmless(page)
    for link in page.links:
        if link.startswith("/explain?"):
            explained = visited.get(link)
            assert explained.status_code in {200, 422}
            is_harmless(Page(explained))


def test_a_long_target_keeps_its_host(visited):
    """However long the path is, where it leads stays readable; the record in the audit has all of it."""
    url = f"https://{'a' * 60}.example.com/" + "b/" * 900
    Page(run(visited, "hostile", "action", "far", url=url))
    for path in ("/subjects/module/hostile", "/audit"):
        page = read(visited, path)
        assert f"{'a' * 60}.example.com" in page.text
        is_harmless(page)


def test_its_tasks_are_told_as_text(visited):
    """Progress and failure of a task are the module's words as well."""
    answer = run(visited, "hostile", "task", "sleep")
    assert answer.status_code == 303
    path = answer.headers["location"]
    page = until(lambda: (found := read(visited, path)) and "ValueError" in found.text and found)
    is_harmless(page)
    is_harmless(read(visited, "/tasks"))
