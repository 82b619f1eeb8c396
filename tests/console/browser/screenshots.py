"""``python -m tests.console.browser.screenshots FOLDER [NAME...]``: pages as pictures, light and dark, wide and narrow.

For looking at them; the tests compare nothing with pictures.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.console.browser.browser_host import House
from tests.console.browser.page_list import FORMS, LOOKING, PAGES, Everything
from tests.console.browser.windows import NARROW, WIDE, Windows


def main(folder, names):
    """Take the pictures of all pages, or of those named."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, closing(House(Path(scratch))) as house:
        every = Everything(house)
        windows = Windows(house.browser, house.served.url, folder, house.cookie)
        for name in names or (*PAGES, *FORMS):
            page = windows.window(None if name == "sign in" else LOOKING)
            if name in PAGES:
                page.goto(every.pages()[name])
            else:
                go, heading = FORMS[name]
                go(page, every)
                page.get_by_role("heading", level=1).filter(has_text=heading).wait_for()
            take(page, folder, name.replace(", ", "-").replace(" ", "-"))
            page.context.close()
        print(*windows.complaints, sep="\n")


def take(page, folder, name):
    """Take the four pictures of a page."""
    for width, size in (("wide", WIDE), ("narrow", NARROW)):
        page.set_viewport_size(size)
        for colours in ("light", "dark"):
            page.emulate_media(color_scheme=colours)
            page.screenshot(path=folder / f"{name}-{width}-{colours}.png", full_page=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
