"""``democrai-sandbox``: which command was asked for, and what becomes of its errors."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version
from typing import TYPE_CHECKING

from democrai_sandbox.policy import SandboxError

from . import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

_FAILED = 1
_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit status: 1 when it was refused, 2 for a wrong command line."""
    _fill_streams()
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except SandboxError as error:
        print(_told(error), file=sys.stderr)  # noqa: T201 - a command's answer
        return _FAILED
    except KeyboardInterrupt:
        return _INTERRUPTED


def _fill_streams() -> None:
    """Open what was closed of the standard streams: else a database would get the number, and what is meant for them.

    The number that is free and lowest is the one that is opened.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _told(error: SandboxError) -> str:
    """Return what is wrong, with its code once."""
    text = str(error)
    return text if text.startswith(f"{error.code}: ") else error.diagnostics()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="democrai-sandbox", description="Run extensions under a sandbox, and decide what they may reach beyond it."
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('democrai-sandbox')}")
    commands = parser.add_subparsers(metavar="command", required=True)
    serving.add_command(commands)
    return parser
