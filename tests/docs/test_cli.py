"""docs/cli.md: has every command, option, exit status and schema. Its examples are run with the quickstart's."""

from __future__ import annotations

import re
from fnmatch import fnmatch

from democrai_sandbox.cli.commands import COMMANDS
from democrai_sandbox.cli.exits import Exit
from tests.docs import reference

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
