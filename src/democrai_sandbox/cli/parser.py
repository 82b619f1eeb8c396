"""Argument parser of a command."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from .commands import PROGRAM
from .terminal import columns

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

    from .commands import Command


_WIDEST = 120


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help formatter with the width of the terminal, up to a readable maximum."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(columns(sys.stdout), _WIDEST) - 2)

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Wrap at spaces, without ``textwrap``, which is slow to import."""
        lines = [""]
        for word in text.split():
            if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
                lines.append("")
            lines[-1] += f" {word}" if lines[-1] else word
        return lines


class CommandParser(argparse.ArgumentParser):
    """Parser without abbreviations, whose meaning could change with new options; an error is one line.

    It is built on first use: a command has up to ten verbs, and building all their parsers takes longer than the rest
    of ``--help``.
    """

    def __init__(self, *, takes: Callable[[CommandParser], None], run: str = "", **options: Any) -> None:
        """Take ``takes``, which adds the arguments, ``run``, the name of the function, and the usual options."""
        self._later = takes, run, options

    def __getattr__(self, name: str) -> Any:
        """Build the parser at the first access to a missing attribute."""
        if "_later" not in self.__dict__:
            raise AttributeError(name)
        takes, run, options = self.__dict__.pop("_later")
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)
        takes(self)
        if run:
            self.set_defaults(run=run)
        return getattr(self, name)

    def error(self, message: str) -> NoReturn:
        """Report a usage error and exit with the documented status."""
        from .output import Exit, shortened, visible  # noqa: PLC0415

        self.exit(Exit.USAGE, f"{self.prog}: {shortened(visible(message))}\n{self.prog} --help shows the arguments\n")


def parser_of(command: Command) -> CommandParser:
    """Return the parser of a command."""
    takes = getattr(import_module(f".arguments.{command.arguments}", __package__), f"{command.name}_arguments")
    description = command.help[0].upper() + command.help[1:] + "."
    return CommandParser(prog=f"{PROGRAM} {command.name}", description=description, takes=takes)


def add_verbs(parser: CommandParser) -> argparse._SubParsersAction[CommandParser]:
    """Let a command have verbs; ``.add_parser(name, help=..., description=..., takes=..., run=...)`` adds one."""
    return parser.add_subparsers(metavar="verb", required=True, parser_class=CommandParser)
