"""Text of others on pages: it is shown for what it is, and nothing of it runs or hides."""

from __future__ import annotations

from urllib.parse import quote, urlencode

import pytest

from tests.console.browser.windows import NARROW, WIDE

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


def look(page, path=""):
    """Open a page, see that nothing on it ran and nothing is hidden, and return what is to be read on it."""
    assert not path or page.goto(path).status in {200, 422}
    text = page.get_by_role("main").inner_text()
    assert page.evaluate("window.hits") is None
    assert page.locator("main img, main script, main [onerror], main [onmouseover], main [onfocus]").count() == 0
    assert [letter for letter in UNSEEN if letter in text] == []
    page.set_viewport_size(NARROW)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= NARROW["width"]
    return text


@pytest.mark.parametrize("name", TARGETS)
def test_a_hostile_target_is_shown_for_what_it_is(standing, desk, name):
    """In the queue, on its page, decided, and in the audit: characters that cannot be seen are named, none runs."""
    target = TARGETS[name]
    one = desk.ask(target, raw=target + " ", chain=("module:weather", "tool:<b>x</b>"), user=f"{name}\u202eresu")
    page = standing.window("ada", script=RUNS)
    for path in ("/requests?user=" + quote(f"{name}\u202eresu"), f"/requests/{one}"):
        text = look(page, path)
        assert "U+202E" in text  # of the user
        for mark in MARKS.get(name, ()):
            assert mark in text
        if name == "long host":
            assert LONG in text.replace("\n", "")
        if name == "punycode":
            assert "xn--pypal-4ve" in text
            assert "p\u0430ypal" in text
        if name == "script":
            assert "<script>" in text
        if name == "long path":
            assert len(text) < 6000 or path.startswith("/requests/")
    page.set_viewport_size(WIDE)
    page.get_by_label("Reason").fill(f"{SCRIPT} \u202ereason\u200b")
    page.get_by_role("button", name="Deny").click()
    page.wait_for_url("**done=denied*")
    decision = page.url.rpartition("about=")[2]
    for path in ("", f"/decisions/{decision}", f"/audit?request={one}"):
        text = look(page, path)
        for mark in MARKS.get(name, ()):
            assert mark in text
        if not path.startswith("/audit"):
            assert "<script>hit('script')</script>" in text
    kind, operation = ("filesystem", "read") if target.startswith("/") else ("network", "receive")
    asked = {"subject": "module:weather", "resource_type": kind, "operation": operation, "target": target}
    look(page, f"/explain?{urlencode(asked)}")
    page.set_viewport_size(WIDE)


def test_what_an_extension_prints_and_returns_is_text(standing):
    """Neither the output of a module nor its result, its name in a message, or an address runs or hides anything."""
    page = standing.window("ada", script=RUNS)
    page.goto("/extensions/module/weather/run/action/fetch")
    page.get_by_label("Parameters").fill('{"url": "http://127.0.0.1:1/\\u202e<img src=x onerror=hit(1)>"}')
    page.get_by_role("button", name="Run").click()
    text = page.get_by_role("main").inner_text()
    assert page.evaluate("window.hits") is None
    assert page.locator("main img").count() == 0
    assert "\u202e" not in text


@pytest.mark.parametrize(
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
    """What a link carries is a filter or a name, never a part of the page."""
    page = standing.window(None if path.startswith("/login") else "ada", script=RUNS)
    assert page.goto(path).status in {200, 404, 422}
    assert page.evaluate("window.hits") is None
    assert page.locator("main script, main img").count() == 0
    assert page.locator("a[href*='elsewhere.example'], input[value*='elsewhere.example']").count() == 0
