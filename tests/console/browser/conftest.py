"""A real Chromium before a real server. The system's own: it is found, never downloaded."""

from __future__ import annotations

import shutil

import pytest
from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE = 30_000
"""Milliseconds; the machine may be busy with other tests."""
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 360, "height": 740}


def chromium():
    """The browser's program; empty where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


@pytest.fixture(scope="session")
def browser():
    """One browser for a worker; each test has contexts of its own in it."""
    program = chromium()
    if not program:
        pytest.skip("there is no Chromium here: sudo apt-get install chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


class People:
    """Opens windows: each for somebody who is signed in, or nobody yet, with what the browser complained about."""

    def __init__(self, browser, served, folder):
        self._browser = browser
        self._served = served
        self._folder = folder
        self._contexts = []
        self.complaints = []
        """What the pages' own consoles said: refused scripts, failed loads, errors of scripts."""

    def window(self, name=None, *, viewport=WIDE, **options):
        """A page in a context of its own, signed in as ``name`` (the first administrator for "") without the form."""
        context = self._browser.new_context(base_url=self._served.url, viewport=viewport, **options)
        context.set_default_timeout(PATIENCE)
        self._contexts.append(context)
        if name is not None:
            with self._served.signed_in(name) as client:
                context.add_cookies(
                    [{"name": key, "value": value, "url": self._served.url} for key, value in client.cookies.items()]
                )
        page = context.new_page()
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _heard(self, message):
        if message.type == "error" and "status of 4" not in message.text:
            self.complaints.append(message.text)

    def close(self, *, failed, name):
        """Close everything; of a test that failed a picture of each window stays."""
        for number, context in enumerate(self._contexts):
            for page in context.pages if failed else ():
                picture = self._folder / f"{name}-{number}.png"
                page.screenshot(path=picture, full_page=True)
                print("picture:", picture)
            context.close()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Let fixtures know how their test went."""
    report = (yield).get_result()
    if report.when == "call":
        item.failed = report.failed


@pytest.fixture
def people(request, browser, served, tmp_path):
    """Windows of the test, closed after it; a page that complained fails it."""
    found = People(browser, served, tmp_path)
    yield found
    failed = getattr(request.node, "failed", True)
    found.close(failed=failed, name=request.node.name.replace("/", "_"))
    assert failed or found.complaints == []
