"""Links in the documents, and pointers to the documents elsewhere, lead somewhere."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.docs.pages import REPOSITORY, anchors, links, name_of, pages

ELSEWHERE = re.compile(r"[a-z][a-z+.-]*:")


def problem(page, link):
    """What is wrong with a link, or nothing."""
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(REPOSITORY):
        return "leads out of the repository"
    if not target.exists():
        return "there is no such file"
    if target.is_dir() and not (target / "index.md").exists():
        return "a folder is no page: write its name as code"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return "there is no such heading"
    return ""


def test_every_link_leads_to_a_file_and_a_heading():
    """Nothing is broken, and no page sends its reader to another host."""
    found = [(page, link) for page in pages() for link in links(page)]
    here = [(page, link) for page, link in found if not ELSEWHERE.match(link)]
    assert [f"{name_of(page)}: {link}" for page, link in found if ELSEWHERE.match(link)] == []
    assert [f"{name_of(page)}: {link}: {wrong}" for page, link in here if (wrong := problem(page, link))] == []


def test_there_are_links():
    """The pattern finds what it looks for."""
    assert sum(len(links(page)) for page in pages()) > 100


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="an unpacked archive has no list of files")
def test_pointers_in_the_code_lead_to_documents():
    """What comments, messages and scripts call ``docs/....md`` is there, with its heading."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    broken = []
    for name in listed.stdout.splitlines():
        path = REPOSITORY / name
        if (
            path.suffix not in {".py", ".c", ".h", ".html", ".sh", ".yml", ".toml", ".json", ".in", ""}
            or not path.is_file()
        ):
            continue
        text = path.read_bytes().decode("utf-8", "replace")
        for page, anchor in re.findall(
            r"(?<![\w/.-])((?:docs/[\w/-]+|README|SECURITY|CHANGELOG|CONTRIBUTING)\.md)(?:#([\w-]+))?", text
        ):
            target = REPOSITORY / page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append(f"{name}: {page}" + (f"#{anchor}" if anchor else ""))
    assert broken == []
