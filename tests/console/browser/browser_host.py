"""Shared objects of the browser tests: a server, a browser, signed-in users, and a desk for requests."""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from functools import cached_property

import pytest
from playwright.sync_api import sync_playwright

from tests.console.browser.windows import Standing
from tests.console.pages.asking import Desk
from tests.console.serving import serving
from tests.console.sessions import enter

UNUSED = "PaintHolding,HttpsUpgrades,MediaRouter,OptimizationHints,NetworkTimeServiceQuerying,RenderDocument"
"""What the browser does for people who wait or browse, and a new frame for every page, which is a fifth of its work."""
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""Programs of the browser; the first one has no windows, and half the work."""


def chromium():
    """The Chromium program, or an empty text."""
    return next(filter(None, map(shutil.which, NAMES)), "")


class House:
    """Created step by step on first use."""

    def __init__(self, folder):
        self._folder = folder
        self._open = ExitStack()
        self.idle = []
        """Windows that no test uses at present."""

    @cached_property
    def browser(self):
        """The Chromium of the system, without a window."""
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
        """A serving process with the example extensions."""
        return self._open.enter_context(serving(self._folder, {"console": {"reauth_minutes": 30}}))

    @cached_property
    def desk(self):
        """Files requests."""
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
        """The cookie of a new session: of the first administrator for "", of uma, or of another user."""
        person = self.served.admin if name == "" else self._person(name)
        return enter(self.served.accounts, person, **more)[0]

    def _person(self, name):
        return self.served.person(name, role="" if name == "uma" else "super").id

    def close(self):
        """Close everything."""
        self._open.close()
