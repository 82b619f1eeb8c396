"""The parser of one command."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

from .commands import PROGRAM
from .exits import Exit
from .output import columns, shortened, visible

if TYPE_CHECKING:
    from .commands import Command

_WIDEST = 120


class Formatter(argparse.RawDescriptionHelpFormatter):
    """As wide as the terminal, and not wider than one reads."""

    def __init__(self, prog: str) -> None:
        """Find out how wide."""
        super().__init__(prog, max_help_position=30, width=min(columns(sys.stdout), _WIDEST) - 2)


class Parser(argparse.ArgumentParser):
    """Takes no abbreviations, which would change their meaning with the next option; says a mistake in one line."""

    def __init__(self, *arguments: object, **options: object) -> None:
        """As every parser, with these two settings."""
        options = {"allow_abbrev": False, "formatter_class": Formatter, **options}
        super().__init__(*arguments, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        """End with the documented status, after what is wrong with the command line and where to read on."""
        self.exit(Exit.USAGE, f"{self.prog}: {shortened(visible(message))}\n{self.prog} --help says what it takes\n")


def parser_of(command: Command) -> Parser:
    """Return the parser of a command."""
    parser = Parser(prog=f"{PROGRAM} {command.name}", description=command.help[0].upper() + command.help[1:] + ".")
    import_module(f".{command.module}", __package__).add_to(parser)
    return parser


def add_verbs(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Parser]:
    """Have a command take verbs; ``.add_parser(name, help=..., description=...)`` adds one."""
    return parser.add_subparsers(metavar="verb", required=True, parser_class=Parser)
