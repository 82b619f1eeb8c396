"""``python -m tests.docs.picture``: take the picture of the console that the README shows, docs/console.png."""

from __future__ import annotations

import sys
import tempfile
from contextlib import closing
from pathlib import Path

from tests.console.browser.browser_host import House
from tests.console.browser.windows import Windows
from tests.docs.pages import REPOSITORY

PICTURE = REPOSITORY / "docs" / "console.png"
SIZE = {"width": 1280, "height": 1000}


def main():
    """Put a request down, and take the picture of its page."""
    with tempfile.TemporaryDirectory() as scratch, closing(House(Path(scratch))) as house:
        desk = house.desk
        for place in ("berlin", "lagos"):
            desk.ask(f"https://api.example.com/{place}", user="noor")
        asked = desk.ask("https://api.example.com/forecast", user="uma", session="monday-morning")
        windows = Windows(house.browser, house.served.url, Path(scratch), house.cookie)
        page = windows.window("ada", viewport=SIZE, color_scheme="light")
        page.goto(f"/requests/{asked}")
        page.get_by_role("heading", level=1).wait_for()
        page.screenshot(path=PICTURE)
    sys.stdout.write(f"{PICTURE}: {PICTURE.stat().st_size // 1000} kB\n")


if __name__ == "__main__":
    main()
