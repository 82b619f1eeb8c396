"""The catalogue as documents: a page for each code, and the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .entry import Entry, Word

_INDEX = "index"
_ABOUT = """\
# Error codes

Every error raised on purpose is a `SandboxError` and carries a stable `code`; texts may change, codes do not. There are
three branches, and they call for different answers:

* **Denials** (`SandboxDenied`, a `PermissionError` with `errno.EACCES`): the policy said no. The text of the error is
  exactly the shape on its page. Attributes: `code`, `layer`, `subject`, `subject_kind`, `subject_chain`, `operation`,
  `target` and `hint`, the entry that would allow it and where it belongs.
* **Failures** (not a `PermissionError`): no decision could be had. Nothing was allowed, but nothing was denied by
  policy either.
* **Misuse**: the call itself was wrong, whatever the policy.

A denial never tells whether the thing outside exists: text, type and attributes are the same either way.

`democrai-sandbox explain 'the line'` finds the page for a line, and asks the node what would happen now;
`democrai-sandbox explain --code CODE` prints a page.
"""


def pages() -> Mapping[str, str]:
    """Return every document by the name of its file, without the ending."""
    made = {one.code: page(one) for _, family in FAMILIES for one in family}
    return {_INDEX: "\n".join(_index()), **made}


def page(entry: Entry) -> str:
    """Return the page of a code."""
    return "\n\n".join(_parts(entry)) + "\n"


def plain(text: str) -> str:
    """Return a text of the catalogue without its marks, for a terminal."""
    parts = text.split("`")
    return "".join(part if place % 2 else part.replace("*", "") for place, part in enumerate(parts))


def _parts(entry: Entry) -> Iterator[str]:
    yield f"# {entry.code}"
    yield f"{entry.title}."
    yield f"Layer: {entry.layer}."
    if entry.shape:
        yield f"Shape: `{entry.shape}`"
    if entry.classes:
        yield " ".join(filter(None, (f"Class: {', '.join(f'`{name}`' for name in entry.classes)}.", entry.remark)))
    elif entry.remark:
        yield entry.remark
    for head, text in (("Meaning", entry.meaning), ("Cause", entry.cause), ("Fix", entry.fix)):
        if text:
            yield f"## {head}\n\n{text}"
    if entry.words:
        yield "\n".join(_table(entry.words))
    if entry.see:
        yield f"See also: {', '.join(f'[{document}](../{document})' for document in entry.see)}."


def _table(words: tuple[Word, ...]) -> Iterator[str]:
    yield "| word | what is wrong | what to do |"
    yield "|---|---|---|"
    for one in words:
        yield f"| `{one.word}` | {one.meaning} | {one.fix} |"


def _index() -> Iterator[str]:
    yield _ABOUT
    for title, family in FAMILIES:
        yield f"## {title}\n\n| code | |\n|---|---|"
        for one in family:
            yield f"| [{one.code}]({one.code}.md) | {one.title} |"
        yield ""
