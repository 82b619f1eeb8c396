"""Browser windows of users, and the errors of their pages."""

from __future__ import annotations

from playwright.sync_api import Error, expect

PATIENCE = 30_000
"""Milliseconds; the machine may be busy with other tests."""
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 360, "height": 740}
FORGET = "localStorage.clear(); sessionStorage.clear();"
LEAVE = "dispatchEvent(new Event('pagehide'))"
"""Ends what a page listens to, and keeps it: an empty page would be in a process of its own, which takes longer to make
than a page takes to load."""
expect.set_options(timeout=PATIENCE)


class Windows:
    """Opens windows: each for somebody who is signed in, or nobody yet, with what the browser complained about.

    A new window is a process of its own: those with the usual options are left in ``idle``, a list, for the next test.
    """

    def __init__(self, browser, url, folder, cookie, idle=None):
        self._browser = browser
        self._url = url
        self._folder = folder
        self._cookie = cookie
        self._idle = idle
        self._pages, self._usual = [], []
        self.complaints = []
        """What the pages' own consoles said: refused scripts, failed loads, errors of scripts."""

    def window(self, name=None, *, viewport=WIDE, confirmed=None, **options):
        """A page in a new context, signed in as ``name`` (the first administrator for "") without the form."""
        if options or not self._idle:
            page = self._new(viewport, options)
        else:
            page = self._idle.pop()
            page.set_viewport_size(viewport)
        self._pages.append(page)
        if not options:
            self._usual.append(page)
        if name is not None:
            cookie = self._cookie(name, **({} if confirmed is None else {"confirmed": confirmed}))
            cookies = [{"name": key, "value": value, "url": self._url} for key, value in cookie.items()]
            page.context.add_cookies(cookies)
        page.on("console", self._heard)
        page.on("pageerror", self._failed)
        return page

    def _new(self, viewport, options):
        usual = {"base_url": self._url, "viewport": viewport, "reduced_motion": "reduce"}
        context = self._browser.new_context(**usual, **options)
        context.set_default_timeout(PATIENCE)
        return context.new_page()

    def _heard(self, message):
        # That an answer was a 403 or a 409 is what some tests are about.
        if message.type in {"error", "warning"} and "status of 4" not in message.text:
            self.complaints.append(message.text)

    def _failed(self, error):
        self.complaints.append(str(error))

    def close(self, *, failed, name):
        """Close or reset all windows; a failed test keeps a picture of each."""
        for number, page in enumerate(self._pages):
            if failed:
                self._picture(page, f"{name}-{number}")
            if failed or self._idle is None or page not in self._usual:
                page.context.close()
            else:
                self._leave(page)
        self._pages.clear()
        self._usual.clear()

    def _leave(self, page):
        page.remove_listener("console", self._heard)
        page.remove_listener("pageerror", self._failed)
        if page.url.startswith(self._url):
            _leave(page, LEAVE + "; " + FORGET)
        page.context.clear_cookies()
        self._idle.append(page)

    def _picture(self, page, name):
        for number, one in enumerate(page.context.pages):
            picture = self._folder / f"{name}-{number}.png"
            try:
                one.screenshot(path=picture, full_page=True)
                print("picture:", picture, one.url)
            except Error as error:
                print("no picture:", error)


class Standing(Windows):
    """Windows that stay open between tests, one per user, signed in once."""

    def __init__(self, *given):
        super().__init__(*given)
        self._of, self._used = {}, set()

    def window(self, name=None, *, script=""):
        """The window of somebody, in which a script runs before those of the pages."""
        if (name, script) not in self._of:
            page = self._of[name, script] = super().window(name)
            if script:
                page.add_init_script(script)
        self._used.add(self._of[name, script])
        return self._of[name, script]

    def settle(self, *, failed, name):
        """After a test: stop event streams, and reset windows of a failed test."""
        if failed:
            self.close(failed=True, name=name)
            self._of.clear()
        else:
            for page in self._used:
                _leave(page, LEAVE)
        self._used.clear()
        found, self.complaints[:] = [*self.complaints], []
        assert failed or found == []


def _leave(page, script):
    """Run a script in a page; a page during navigation is emptied instead."""
    try:
        page.evaluate(script)
    except Error:
        page.goto("about:blank")
