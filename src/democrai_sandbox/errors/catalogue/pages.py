"""Pages of the catalog: one per family, with a section per code, and the index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.errors.catalogue import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from democrai_sandbox.errors.catalogue import ErrorEntry, ErrorFamily
    from democrai_sandbox.policy.problems import Word

_INDEX = "index"
_ABOUT = """\
# Error codes

Every error of this package is a `SandboxError` with a stable `code`. Texts may change, codes do not. Three kinds of
errors need different reactions:

* **Denials** (`SandboxDenied`, a `PermissionError` with `errno.EACCES`): the policy refused the access. The text has
  the documented shape. Attributes: `code`, `layer`, `subject`, `subject_kind`, `subject_chain`, `operation`, `target`,
  and `hint` with the missing entry and its place.
* **Failures** (not a `PermissionError`): the system could not decide or could not work. The access is refused, and a
  retry can succeed.
* **Misuse**: the call is wrong, regardless of the policy.

A denial never reveals whether the target exists: text, type and attributes are the same in both cases.

`democrai-sandbox explain 'LINE'` explains an error line and asks the node what it would answer now;
`democrai-sandbox explain --code CODE` prints the section of a code.
"""


def pages() -> Mapping[str, str]:
    """Return the text of every page by its file name without the ending."""
    return {_INDEX: "\n".join(_index()), **{family.name: "\n\n".join(_page(family)) + "\n" for family in FAMILIES}}


def plain(text: str) -> str:
    """Return a text of the catalog without Markdown, for a terminal."""
    parts = text.split("`")
    return "".join(part if place % 2 else part.replace("*", "") for place, part in enumerate(parts))


def _index() -> Iterator[str]:
    yield _ABOUT
    for family in FAMILIES:
        yield f"## [{family.title}]({family.name}.md)\n\n{family.about}\n\n| Code | Summary |\n|---|---|"
        for one in family.entries:
            yield f"| [`{one.code}`]({family.name}.md#{one.code}) | {one.title} |"
        yield ""


def _page(family: ErrorFamily) -> Iterator[str]:
    yield f"# {family.title}"
    yield f"{family.about} [All error codes](index.md)"
    for entry in family.entries:
        yield from _section(entry)


def _section(entry: ErrorEntry) -> Iterator[str]:
    yield f"## {entry.code}"
    yield f"**{entry.title}.** {entry.meaning}"
    yield " ".join(_facts(entry))
    yield f"**Cause.** {entry.cause}"
    yield f"**Fix.** {entry.fix}"
    if entry.words:
        yield "\n".join(_table(entry.words))
    yield f"**Example**\n\n```text\n{entry.example}\n```"
    if entry.see:
        yield f"See also: {', '.join(f'[{document}](../{document})' for document in entry.see)}."


def _facts(entry: ErrorEntry) -> Iterator[str]:
    yield f"Layer: {entry.layer}."
    if entry.classes:
        bases = f" (base: {', '.join(f'`{name}`' for name in entry.bases)})" if entry.bases else ""
        yield f"Class: {', '.join(f'`{name}`' for name in entry.classes)}{bases}."
    if entry.shape:
        yield f"Shape: `{entry.shape}`"


def _table(words: tuple[Word, ...]) -> Iterator[str]:
    yield "| Word | Meaning | Fix |"
    yield "|---|---|---|"
    for one in words:
        yield f"| `{one.word}` | {one.meaning} | {one.fix} |"
