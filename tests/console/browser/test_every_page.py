"""Every page: accessibility, light and dark, narrow screen, and no browser errors."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT

import democrai_sandbox.console
from tests.console.browser.page_list import FORMS, LOOKING, PAGES, Everything
from tests.console.browser.windows import NARROW, WIDE
from tests.services.remembered import remembered

RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
COLOURS = ("color-contrast", "link-in-text-block")
CHANGING = (*COLOURS, "target-size", "scrollable-region-focusable")
"""What the width of the screen can make a difference to: colours as well, for rows become cards."""
SHOWN = """() => { for (const one of document.querySelectorAll("body *")) one.shown = one.checkVisibility(); }"""
HIDDEN = """() => {
    const kind = (one) => [one.localName, one.className, one.role, one.getAttribute("aria-current"), ""].join(" ");
    const path = (one) => (one === document.body ? "" : path(one.parentElement)) + kind(one);
    return [...document.querySelectorAll("body *")]
        .filter((one) => one.shown && !one.checkVisibility() && [...one.childNodes].some((node) => node.data?.trim()))
        .map(path);
}"""
"""The kinds of elements, by their classes and those around them, whose text only a wide screen shows."""
TOO_WIDE = """() => [...document.querySelectorAll("body *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
    .slice(0, 5).map((one) => one.outerHTML.slice(0, 200))"""


@pytest.fixture
def every(house):
    """Pages with content."""
    if not hasattr(house, "everything"):
        house.everything = Everything(house)
    return house.everything


def findings(page, rules=RULES):
    """Findings of the accessibility tool, of every severity."""
    if not page.evaluate("typeof axe === 'object'"):
        page.evaluate(AXE_SCRIPT)
    # There are no frames, and the rules need no style sheet that would be fetched again.
    options = {"runOnly": list(rules), "resultTypes": ["violations"], "preload": False, "iframes": False}
    found = page.evaluate("(options) => axe.run(options).then((results) => results.violations)", options)
    return [
        f"{one['impact']} {one['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for one in found
        for node in one["nodes"]
    ]


def problems(page, seen):
    """What is wrong with the page as it is: light and dark, wide and narrow.

    In the dark a narrow screen shows nearly everything; what it hides, the menu and heads of tables, is looked at on a
    wide one, once for each kind of element: ``seen`` has the kinds of pages before.
    """
    yield from (f"light: {one}" for one in findings(page))
    page.evaluate(SHOWN)
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(NARROW)
    yield from (f"narrow: {one}" for one in findings(page, CHANGING))
    if page.evaluate("document.scrollingElement.scrollWidth") > NARROW["width"]:
        yield from (f"too wide: {one}" for one in page.evaluate(TOO_WIDE) or ["something"])
    hidden = set(page.evaluate(HIDDEN))
    page.set_viewport_size(WIDE)
    if hidden - seen:
        yield from (f"dark: {one}" for one in findings(page, COLOURS))
    seen |= hidden
    page.emulate_media(color_scheme="light")


STYLES = Path(democrai_sandbox.console.__file__).parent / "static"
CHANGING_TEXTS = re.compile(r"(?<=>)(just now|\d+ \w+ ago)(?=</time>)|[A-Za-z0-9_-]{20,}|\b[0-9a-f]{8,}\b|\d+")
"""Ids, tokens, numbers and times, which no finding depends on."""


def page_key(page, browser):
    """The digest of everything that findings depend on: elements, texts and environment."""
    text = CHANGING_TEXTS.sub("0", page.content())
    return hashlib.sha256("\0".join([text, *surroundings(browser)]).encode()).hexdigest()[:32]


@cache
def surroundings(browser):
    """The parts of a key that all pages share: browser, rules, this file and styles."""
    styles = [file.read_text() for file in sorted(STYLES.glob("*.css"))]
    return (browser, AXE_SCRIPT, Path(__file__).read_text(), *styles)


@pytest.fixture
def checked(pytestconfig, house):
    """The keys of pages without findings."""
    if not hasattr(house, "checked"):
        house.checked = remembered(pytestconfig, "pages", "checked")
    return house.checked


@pytest.fixture
def check(house, every, checked):
    """Check that a page has no findings."""

    def look(page):
        assert page.get_by_role("heading", level=1).count() == 1
        assert page.title() not in {"", " · democrai sandbox"}
        key = page_key(page, house.browser.version)
        if key not in checked:
            assert list(problems(page, every.seen)) == []
            checked.add(key)

    return look


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_for_everybody(standing, every, check, name):
    """One heading, a title, no accessibility findings, and not wider than a phone."""
    page = standing.window(None if name == "sign in" else LOOKING)
    answer = page.goto(every.pages()[name])
    assert answer.status == {"queue, wrong filter": 422, "not there": 404}.get(name, 200)
    assert name == "sign in" or "/login" not in page.url
    check(page)


@pytest.mark.parametrize("name", FORMS)
def test_what_an_act_leads_to_is_for_everybody(standing, every, check, name):
    """The same for confirmation and result pages."""
    go, heading = FORMS[name]
    page = standing.window(LOOKING)
    go(page, every)
    page.get_by_role("heading", level=1).filter(has_text=heading).wait_for()
    check(page)


@pytest.mark.parametrize(
    "path", ["/requests", "/extensions", "/extensions/module/weather", "/tasks", "/account", "/audit"]
)
def test_a_page_of_somebody_who_may_not_decide_is_for_everybody(standing, every, check, path):
    """The same for pages of other users."""
    assert every.ids
    page = standing.window("uma")
    assert page.goto(path).status == (403 if path == "/audit" else 200)
    check(page)


def test_the_menu_of_a_narrow_screen(people):
    """On a phone, buttons open the navigation and the filters."""
    page = people.window("ada", viewport=NARROW)
    page.goto("/requests")
    page.get_by_role("button", name="Search and filter").click()
    page.get_by_label("Target contains").fill("nothing-of-this-name")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.wait_for_url("**text=nothing-of-this-name*")
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Approvals").click()
    page.wait_for_url("**/approvals")
    assert findings(page) == []
