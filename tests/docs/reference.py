"""``python -m tests.docs.reference``: put what every command takes, as its parser knows it, into docs/cli.md."""

from __future__ import annotations

import argparse
import ast
import re
import sys

from democrai_sandbox.cli.commands import COMMANDS, PROGRAM
from democrai_sandbox.cli.parser import parser_of
from tests.docs.pages import REPOSITORY

PAGE = REPOSITORY / "docs" / "cli.md"
BEGIN, END = "<!-- made by python -m tests.docs.reference -->\n", "<!-- end -->\n"
COMMON = {
    "--help": "",
    "--json": "",
    "--config": "",
    "--url": "",
    "--token-file": "",
}
"""Described once, at the beginning of the page."""
_CLI = REPOSITORY / "src" / "democrai_sandbox" / "cli"


def reference():
    """Return the sections of all commands."""
    return "\n".join(_section(parser_of(command), command.name, 2) for command in COMMANDS)


def schemas():
    """Return the names of all kinds of data that commands print for programs; ``*`` is what is put in at run time."""
    found = set()
    for path in _CLI.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            text = ""
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            elif isinstance(node, ast.JoinedStr):
                text = "".join(part.value if isinstance(part, ast.Constant) else "*" for part in node.values)
            found |= set(re.findall(r"\A(?:democrai-sandbox/)?([a-z]+(?:\.[a-z*-]+)+/\d+)\Z", text))
    return found


def _section(parser, words, depth):
    verbs = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    text = f"{'#' * depth} {words}\n\n{_escaped(parser.description or '')}\n"
    if verbs is not None:
        return text + "\n" + "\n".join(_section(verb, f"{words} {name}", 3) for name, verb in verbs.choices.items())
    usage = re.sub(r"\s+", " ", parser.format_usage()).removeprefix("usage: ").strip()
    text += f"\n```text\n{_without_common(usage)}\n```\n"
    rows = [_row(action) for action in parser._actions if not set(action.option_strings) & set(COMMON)]
    common = [f"`{name}`" for action in parser._actions for name in action.option_strings if name in COMMON]
    if rows:
        text += "\n| | |\n|---|---|\n" + "".join(rows)
    taken = [name for name in common if name != "`--help`"]
    return text + (f"\nAlso {', '.join(taken)}.\n" if taken else "")


def _row(action):
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{_metavar(action)}`"
    if action.option_strings and action.nargs != 0:
        names += f" `{_metavar(action)}`"
    return f"| {names} | {_escaped((action.help or '').replace('%%', '%'))} |\n"


def _metavar(action):
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    return action.metavar or (", ".join(map(str, action.choices)) if action.choices else action.dest)


def _escaped(text):
    """Keep what a table or a tag would be made of: these texts are plain."""
    return re.sub(r"\s*\n\s*", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def _without_common(usage):
    for name in COMMON:
        usage = re.sub(rf" \[(?:-h, )?{name}(?: [A-Z]+)?\]", "", usage)
    return usage.replace(" [-h]", "")


def placed(text):
    """Return the page with the sections in it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{reference()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text()))
    sys.stdout.write(f"{PROGRAM}: {len(COMMANDS)} commands, schemas: {', '.join(sorted(schemas()))}\n")
