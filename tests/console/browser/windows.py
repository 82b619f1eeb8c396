"""Windows of the browser, each of somebody, and what the pages in them complained about."""

from __future__ import annotations

from playwright.sync_api import Error, expect

PATIENCE = 30_000
"""Milliseconds; the machine may be busy with other tests."""
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 360, "height": 740}
expect.set_options(timeout=PATIENCE)


class Windows:
    """Opens windows: each for somebody who is signed in, or nobody yet, with what the browser complained about."""

    def __init__(self, browser, url, folder, cookie):
        self._browser = browser
        self._url = url
        self._folder = folder
        self._cookie = cookie
        self._contexts = []
        self.complaints = []
        """What the pages' own consoles said: refused scripts, failed loads, errors of scripts."""

    def window(self, name=None, *, viewport=WIDE, confirmed=None, **options):
        """A page in a context of its own, signed in as ``name`` (the first administrator for "") without the form."""
        options = {"base_url": self._url, "viewport": viewport, "reduced_motion": "reduce", **options}
        context = self._browser.new_context(**options)
        context.set_default_timeout(PATIENCE)
        self._contexts.append(context)
        if name is not None:
            cookie = self._cookie(name, **({} if confirmed is None else {"confirmed": confirmed}))
            context.add_cookies([{"name": key, "value": value, "url": self._url} for key, value in cookie.items()])
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.on("console", self._heard)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        return page

    def _heard(self, message):
        # That an answer was a 403 or a 409 is what some tests are about.
        if message.type in {"error", "warning"} and "status of 4" not in message.text:
            self.complaints.append(message.text)

    def close(self, *, failed, name):
        """Close everything; of a test that failed a picture of each window stays."""
        for number, context in enumerate(self._contexts):
            for page in context.pages if failed else ():
                picture = self._folder / f"{name}-{number}.png"
                try:
                    page.screenshot(path=picture, full_page=True)
                    print("picture:", picture, page.url)
                except Error as error:
                    print("no picture:", error)
            context.close()


class Standing(Windows):
    """Windows that stay open from one test to the next, one of each person: a new one costs more than most pages."""

    def __init__(self, *given):
        super().__init__(*given)
        self._pages = {}

    def window(self, name=None, *, script=""):
        """The window of somebody, in which a script runs before those of the pages."""
        if (name, script) not in self._pages:
            page = self._pages[name, script] = super().window(name)
            page.add_init_script(script)
        return self._pages[name, script]

    def settle(self, *, failed, name):
        """After a test: what a failed one leaves is for nobody else."""
        if failed:
            self.close(failed=True, name=name)
            self._pages.clear()
            self._contexts.clear()
        found, self.complaints[:] = [*self.complaints], []
        assert failed or found == []
