"""``make docs``: the pages become a site, without a warning and without a foreign host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, made as ``make docs`` makes it."""
    folder = tmp_path_factory.mktemp("docs")
    done = subprocess.run(
        [REPOSITORY / "scripts" / "docs", folder],
        env={"PATH": "/usr/bin:/bin", "VENV": str(Path(sys.executable).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "site"


def test_every_link_of_the_site_leads_to_one_of_its_files(site):
    """Pages and pictures are where the pages say."""
    broken, seen = set(), 0
    for page in site.rglob("*.html"):
        if page.name == "404.html":  # served for any address: its links begin at the root
            continue
        for link in re.findall(r"(?:href|src)=\"?([^\"\s>]+)", page.read_text()):
            path = link.partition("#")[0].partition("?")[0]
            if not path or re.match(r"[a-z]+:|//", path):
                continue
            seen += 1
            target = page.parent / path
            if not (target.is_file() or (target / "index.html").is_file()):
                broken.add(f"{page.relative_to(site)}: {link}")
    assert seen > 500
    assert broken == set()


def test_no_page_asks_another_host(site):
    """What a browser loads by itself is the site's own."""
    loaded = set()
    for page in site.rglob("*.html"):
        text = page.read_text()
        loaded |= set(re.findall(r"<(?:script|img|link|iframe)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)", text))
    assert loaded == set()
