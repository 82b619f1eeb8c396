"""The documents: every page, its headings, its links, its blocks of code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

REPOSITORY = Path(__file__).resolve().parents[2]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)\n(?P<text>.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\(<?([^()\s>]+)>?(?: \"[^\"]*\")?\)")
NOT_RUN = re.compile(r"<!-- not run: (.+?) -->\n+\Z")
"""Stands right before a block that no test can run, and says why."""


def pages():
    """Every document of the repository."""
    return [*sorted(REPOSITORY.glob("*.md")), *sorted((REPOSITORY / "docs").rglob("*.md"))]


def name_of(page):
    """How a page is called in messages, and in tables of tests."""
    return page.relative_to(REPOSITORY).as_posix()


@cache
def blocks(page):
    """The fenced blocks of a page, in order: language, text, line, and the reason not to run it, if it has one."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        reason = NOT_RUN.search(text[: match.start()])
        found.append(
            SimpleNamespace(
                page=name_of(page),
                line=text.count("\n", 0, match.start()) + 1,
                language=match["language"],
                text=match["text"],
                reason=reason.group(1) if reason else "",
                before=text[: match.start()],
            )
        )
    return found


def every_block(language):
    """All blocks of one language, of all pages."""
    return [block for page in pages() for block in blocks(page) if block.language == language]


def prose(page):
    """The text of a page without its code."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"^(?: {4}|\t).*$", "", text, flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", lambda code: "`" * len(code.group()), text)


def links(page):
    """Where the links of a page lead."""
    return _LINK.findall(prose(page))


@cache
def anchors(page):
    """The names of the headings of a page, as the usual readers of Markdown make them, and the ones set by hand."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found, seen = set(), {}
    for heading in re.findall(r"^#{1,6} (.+?)#*$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        slug = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = seen[slug] = seen.get(slug, -1) + 1
        found.add(f"{slug}-{number}" if number else slug)
    return found | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", text))
