"""Untrusted text on pages: nothing runs, and nothing is hidden."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import pytest

from tests.console.browser.windows import NARROW
from tests.console.pages.asking import decide
from tests.services.rows import rows

SCRIPT = "<script>hit('script')</script><img src=x onerror=hit('img')>"
LONG = "a-very-long-label-of-a-host-name." * 7 + "example"
TARGETS = {
    "script": f"https://hostile.example/{SCRIPT}",
    "attribute": "https://hostile.example/\"onmouseover='hit(1)'autofocus onfocus=hit(1) x=",
    "template": "https://hostile.example/{{7*7}}${7*7}{%raw%}",
    "bidi": "https://hostile.example/\u202egpj.exe",
    "isolate": "https://hostile.example/\u2067moc.elgoog\u2069",
    "zero width": "https://hostile.example/pay\u200bpal\u2060\ufeff",
    "controls": "/srv/data/a\x1b[31m\r\n\tred\x7f",
    "tags": "https://hostile.example/\U000e0041\U000e0042",
    "long host": f"https://{LONG}/v1",
    "long path": "https://hostile.example/" + "deep/" * 380,
    "punycode": "https://xn--pypal-4ve.example/login",
    "combining": "https://hostile.example/z" + "\u0301\u0488" * 60,
}
MARKS = {
    "bidi": ["U+202E"],
    "isolate": ["U+2067", "U+2069"],
    "zero width": ["U+200B", "U+2060", "U+FEFF"],
    "controls": ["U+001B", "U+000D", "U+000A", "U+0009", "U+007F"],
    "tags": ["U+E0041"],
}
UNSEEN = "\u202e\u2067\u2069\u200b\u2060\ufeff\x1b\x7f\U000e0041"
RUNS = "window.hit = (what) => { window.hits = [...(window.hits || []), what]; };"


def look(page, path):
    """Open a page, check that nothing ran or is hidden, and return its text."""
    assert page.goto(path).status in {200, 422}
    text = page.get_by_role("main").inner_text()
    assert page.evaluate("window.hits") is None
    assert page.locator("main img, main script, main [onerror], main [onmouseover], main [onfocus]").count() == 0
    assert [letter for letter in UNSEEN if letter in text] == []
    assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
    return text


@pytest.fixture
def narrow(standing):
    """A window of phone width, where hidden and overlapping content is detected."""
    page = standing.window("ada", script=RUNS)
    page.set_viewport_size(NARROW)
    return page


def test_hostile_targets_are_shown_for_what_they_are_in_lists(narrow, desk):
    """Invisible characters are named in the queue and in the audit log."""
    subject = "tool:<i>lists</i>"
    for name, target in TARGETS.items():
        desk.ask(target, subject=subject, raw=target + " ", user=f"{name}\u202eresu")
    for path in (f"/requests?subject={quote(subject)}", f"/audit?subject={quote(subject)}"):
        text = look(narrow, path)
        assert [mark for marks in MARKS.values() for mark in marks if mark not in text] == []
        assert LONG in text.replace("\n", "")
        assert "xn--pypal-4ve" in text
        assert "p\u0430ypal" in text
        assert "<script>" in text
        assert "/deep" * 300 not in text
    assert "U+202E" in look(narrow, "/requests?user=" + quote("script\u202eresu"))  # of the user


@pytest.mark.parametrize("name", TARGETS)
def test_a_hostile_target_is_shown_for_what_it_is(narrow, served, desk, name):
    """Invisible characters are named on every page of the target."""
    target = TARGETS[name]
    one = desk.ask(target, raw=target + " ", chain=("module:weather", "tool:<b>x</b>"), user=f"{name}\u202eresu")
    text = look(narrow, f"/requests/{one}")
    assert "U+202E" in text  # of the user
    assert [mark for mark in MARKS.get(name, ()) if mark not in text] == []
    if name == "long host":
        assert LONG in text.replace("\n", "")
    if name == "punycode":
        assert "xn--pypal-4ve" in text
        assert "p\u0430ypal" in text
    if name == "script":
        assert "<script>" in text
    with served.signed_in() as client:
        done = decide(client, one, "deny", reason=f"{SCRIPT} \u202ereason\u200b").headers["location"]
    look(narrow, f"/decisions/{done.rpartition('about=')[2]}/undo")
    for path in (done, f"/decisions/{done.rpartition('about=')[2]}"):
        text = look(narrow, path)
        assert [mark for mark in MARKS.get(name, ()) if mark not in text] == []
        assert "<script>hit('script')</script>" in text
    kind, operation = ("filesystem", "read") if target.startswith("/") else ("network", "receive")
    asked = {"subject": "module:weather", "resource_type": kind, "operation": operation, "target": target}
    look(narrow, f"/explain?{urlencode(asked)}")


def test_what_an_extension_prints_and_returns_is_text(standing):
    """Output, results and names of a module are escaped."""
    page = standing.window("ada", script=RUNS)
    page.goto("/extensions/module/weather/run/action/fetch")
    page.get_by_label("Parameters").fill('{"url": "http://127.0.0.1:1/\\u202e<img src=x onerror=hit(1)>"}')
    page.get_by_role("button", name="Run").click()
    text = page.get_by_role("main").inner_text()
    assert page.evaluate("window.hits") is None
    assert page.locator("main img").count() == 0
    assert "\u202e" not in text


@rows(
    "path",
    [
        "/requests?done=%3Cscript%3E&text=%3Cscript%3Ehit(1)%3C/script%3E",
        "/requests?subject=%22%3E%3Cscript%3Ehit(1)%3C/script%3E",
        "/login?next=https://elsewhere.example/",
        "/login?next=//elsewhere.example/",
        "/requests/%3Cscript%3Ehit(1)%3C%2Fscript%3E",
        "/subjects/module/%3Cscript%3Ehit(1)%3C%2Fscript%3E",
        "/audit?actor=%22%3E%3Cscript%3Ehit(1)%3C/script%3E",
        "/explain?subject=%3Cscript%3E&target=%22%3E%3Cscript%3Ehit(1)%3C/script%3E",
    ],
)
def test_an_address_that_somebody_was_sent_runs_nothing(standing, path):
    """Parameters of an address are escaped."""
    page = standing.window(None if path.startswith("/login") else "ada", script=RUNS)
    assert page.goto(path).status in {200, 404, 422}
    assert page.evaluate("window.hits") is None
    assert page.locator("main script, main img").count() == 0
    assert page.locator("a[href*='elsewhere.example'], input[value*='elsewhere.example']").count() == 0
