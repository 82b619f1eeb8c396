"""``make docs``: the pages become a site, without a warning and without a foreign host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, pages


def made(folder):
    """Make the site as ``make docs`` does, and return where it is."""
    done = subprocess.run(
        [REPOSITORY / "scripts" / "docs", folder],
        env={"PATH": "/usr/bin:/bin", "VENV": str(Path(sys.executable).parents[1])},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "site"


def broken(site, page, text):
    """Return the links of a page that lead to none of the site's files."""
    found = set()
    for link in re.findall(r"(?:href|src)=\"?([^\"\s>]+)", text):
        path = link.partition("#")[0].partition("?")[0]
        target = page.parent / path
        if path and not re.match(r"[a-z]+:|//", path) and not (target.is_file() or (target / "index.html").is_file()):
            found.add(f"{page.relative_to(site)}: {link}")
    return found


def test_the_site_is_whole_and_asks_no_other_host(tmp_path):
    """It is made without a warning; its links lead to its own files; a browser loads nothing from elsewhere by it."""
    site = made(tmp_path)
    # One page is served for any address that there is not: its links begin at the root.
    texts = {page: page.read_text() for page in site.rglob("*.html") if page.name != "404.html"}
    assert len(texts) == len(pages())
    assert set().union(*(broken(site, page, text) for page, text in texts.items())) == set()
    loaded = r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)"
    assert {found for text in texts.values() for found in re.findall(loaded, text)} == set()
