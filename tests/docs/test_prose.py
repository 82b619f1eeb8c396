"""The pages are written in plain English, one sentence per line."""

from __future__ import annotations

import re

from tests.docs.pages import REPOSITORY, name_of, pages
from tests.services.rows import rows

GENERATED = {"CHANGELOG.md", "docs/cli.md", "docs/compatibility.md"}
"""Made from sources that have other rules, or written as one line per change."""
WRITTEN = [page for page in pages() if name_of(page) not in GENERATED and page.parent != REPOSITORY / "docs" / "errors"]
AVOIDED = re.compile(
    r"\b(?:somebody|anybody|nobody|everybody|whoever|whatever|whereabouts|there (?:is|are) no|is none|by way of"
    r"|puts? down|shut out|(?:is|are) told|leaves? word|lets? go of|mends?|dearer|misspelt|behaviour|colour|licence"
    r"|recognise\w*|authorise\w*|organisation\w*|catalogue)\b",
    re.IGNORECASE,
)
SENTENCE = re.compile(r"(?<=[a-z0-9`)][.!?]) (?=[A-Z`*\[(\"])")
"""A space between two sentences. A bold lead-in stays with its sentence: its full stop is before the asterisks."""


def lines(page):
    """Yield the lines of prose with their numbers, without code, tables and headings; inline code is masked."""
    inside = False
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            inside = not inside
        elif not inside and not line.startswith(("|", "#", "    ", "<!--")):
            masked = re.sub(r"`[^`]*`", lambda code: "`" * len(code.group()), line)
            yield number, re.sub(r"^\s*(?:> *)?(?:[*-]|\d+\.) ", "", masked)


@rows("page", WRITTEN, ids=name_of)
def test_one_sentence_per_line(page):
    """A change of a sentence is a change of one line."""
    assert [f"{name_of(page)}:{number}" for number, line in lines(page) if SENTENCE.search(line)] == []


@rows("page", WRITTEN, ids=name_of)
def test_plain_words(page):
    """The glossary has the words to use, in American spelling."""
    text = re.sub(r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert sorted({found.group().lower() for found in AVOIDED.finditer(text)}) == []
