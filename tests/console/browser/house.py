"""What the tests in the browser share: a server, a browser, people who are signed in, and a desk for requests."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import cached_property

import pytest
from playwright.sync_api import sync_playwright

from tests.console.browser.windows import Standing
from tests.console.entering import enter
from tests.console.pages.asking import Desk
from tests.console.serving import serving

UNUSED = "PaintHolding,HttpsUpgrades,MediaRouter,OptimizationHints,NetworkTimeServiceQuerying,RenderDocument"
"""What the browser does for people who wait or browse, and a new frame for every page, which is a fifth of its work."""
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs of the browser; the first one has no windows, and half the work."""


def chromium():
    """The browser's program; empty where there is none."""
    return next(filter(None, map(shutil.which, NAMES)), "")


class House:
    """Made by the first test that needs it, piece by piece."""

    def __init__(self, folder):
        self._folder = folder
        self._open = ExitStack()
        self.idle = []
        """Windows that no test uses at present."""

    @cached_property
    def browser(self):
        """The system's Chromium, without a window."""
        program = chromium()
        if not program:
            pytest.skip("there is no Chromium here: sudo apt-get install chromium")
        playwright = self._open.enter_context(sync_playwright())
        options = ["--no-sandbox", "--disable-gpu", f"--disable-features={UNUSED}"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        self._open.callback(browser.close)
        return browser

    @cached_property
    def served(self):
        """A process that serves, with the example extensions."""
        return self._open.enter_context(serving(self._folder, {"console": {"reauth_minutes": 30}}))

    @cached_property
    def desk(self):
        """Where requests are put down."""
        desk = Desk(self.served)
        self._open.callback(desk.close)
        return desk

    @cached_property
    def standing(self):
        """Windows that tests share."""
        windows = Standing(self.browser, self.served.url, self._folder, self.cookie)
        self._open.callback(windows.close, failed=False, name="")
        return windows

    def cookie(self, name, **more):
        """The cookie of a new session: of the first administrator for "", of uma who may not decide, or of another."""
        person = self.served.admin if name == "" else self._person(name)
        return enter(self.served.accounts, person, **more)[0]

    def _person(self, name):
        return self.served.person(name, role="" if name == "uma" else "super").id

    def close(self):
        """End everything."""
        self._open.close()
