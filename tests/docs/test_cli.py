"""docs/cli.md: has every command, option, exit status and schema. Its examples are run with the quickstart's."""

from __future__ import annotations

import argparse
import re
from fnmatch import fnmatch

from democrai_sandbox.cli.commands import COMMANDS
from democrai_sandbox.cli.output import Exit
from democrai_sandbox.cli.parser import parser_of
from tests.docs import reference
from tests.docs.pages import REPOSITORY, pages

PAGE = reference.PAGE.read_text()


def test_every_command_and_option_is_described():
    """The sections are those that the parsers make; run ``python -m tests.docs.reference`` if not."""
    assert reference.placed(PAGE) == PAGE
    assert re.findall(r"^## (\w+)$", PAGE, re.MULTILINE) == [one.name for one in COMMANDS]


def test_every_exit_status_is_described():
    """And none is made up."""
    assert {int(status) for status in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == set(map(int, Exit))


def test_every_schema_is_described():
    """Each kind of data that a command prints for programs has its row, and no row is left over."""
    told = set(re.findall(r"`([a-z]+(?:\.[a-z-]+)+/\d+)`", PAGE))
    made = reference.schemas()
    assert {name for name in made if "*" not in name} <= told
    assert {name for name in told if not any(fnmatch(name, form) for form in made)} == set()
    assert {form for form in made if not any(fnmatch(name, form) for name in told)} == set()


def words(parser):
    """The verbs of a parser with theirs, and all options that it knows itself."""
    verbs = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    options = {name for action in parser._actions for name in action.option_strings}
    return (verbs.choices if verbs else {}), options


def unknown(text):
    """Return what a command in the documents says that no parser knows, or nothing."""
    given = text.split()[1:]
    known = {one.name: one for one in COMMANDS}
    if not given or given[0] not in known:
        return given[0] if given and re.fullmatch(r"[a-z]+", given[0]) else ""
    verbs, options = words(parser_of(known[given.pop(0)]))
    while verbs and given and re.fullmatch(r"[a-z|-]+", given[0]):
        named = given.pop(0).split("|")
        if missing := [verb for verb in named if verb not in verbs]:
            return missing[0]
        verbs, options = words(verbs[named[0]])
    before = given[: given.index("--")] if "--" in given else given
    return next((word for word in before if re.match(r"--[a-z]", word) and word.partition("=")[0] not in options), "")


OF_A_GUIDE = {"democrai-sandbox uptime"}
"""Commands that the guide to working on the product has its reader add."""


def test_commands_in_the_text_are_commands():
    """Every command that a page, a message or a comment of the sources names exists, with its verbs and options."""
    sources = [*pages(), *(REPOSITORY / "src").rglob("*.py"), *(REPOSITORY / "deploy").rglob("*")]
    wrong, seen = [], 0
    for path in sources:
        if not path.is_file():
            continue
        for text in re.findall(
            r"(?<!/)`+(democrai-sandbox [^`\n]+)`", path.read_text(encoding="utf-8", errors="replace")
        ):
            seen += 1
            if text in OF_A_GUIDE:
                continue
            if word := unknown(text):
                wrong.append(f"{path.relative_to(REPOSITORY)}: {text}: {word}")
    assert seen > 50
    assert wrong == []
