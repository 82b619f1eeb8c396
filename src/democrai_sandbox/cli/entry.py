"""``democrai-sandbox``: which command was asked for, and what becomes of its errors.

Only what the command needs is imported, and next to nothing for ``--help``.
"""

from __future__ import annotations

import io
import os
import sys

from democrai_sandbox import __version__

from .commands import COMMANDS, PROGRAM, overview
from .terminals import give_up

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from .commands import Command

_FAILED, _USAGE, _CLOSED_PIPE, _INTERRUPTED = 1, 2, 141, 130
"""As in ``Exit``, which is slow to import."""
_LONGEST = 300
_TRACEBACK = "DEMOCRAI_TRACEBACK"
"""The variable that shows the traceback of an error that is a defect."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit status, whose meanings are in ``Exit``."""
    _fill_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not given or given[0].startswith("-"):
            return _about(given)
        return _carried_out(given, heeds_signals=arguments is None)
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except BrokenPipeError:
        return _nobody_reads()


def _about(given: list[str]) -> int:
    """Answer what is no command."""
    if sys.stdout is None:
        return _FAILED
    if given and given[0] in {"-h", "--help"}:
        sys.stdout.write(overview())
    elif given and given[0] == "--version":
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
    else:
        return _misused(f"{given[0]!r} is no option" if given else "a command is missing")
    sys.stdout.flush()
    return 0


def _carried_out(given: list[str], *, heeds_signals: bool) -> int:
    command = next((one for one in COMMANDS if one.name == given[0]), None)
    if command is None:
        return _unknown(given[0])
    for stream in (sys.stdout, sys.stderr):
        # What the terminal's own character set lacks is written out: a name in other letters is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    ending: Callable[..., int | None] = _plain_ending
    options = None
    try:
        options = _parsed(command, given[1:])
        # Before the command and not when it fails: an import can fail, or be refused, at that time.
        from .failing import ending  # noqa: PLC0415 - see above

        if heeds_signals:
            _heed_signals()
        return _done(options)
    except BrokenPipeError:
        raise
    except Exception as error:
        status = ending(error, getattr(options, "asked", None))
        if status is None and os.environ.get(_TRACEBACK):
            raise
        return _defect(error) if status is None else status


def _plain_ending(error: Exception, _: object) -> int | None:
    """Say what is wrong with the installation, before there is anything that says it better."""
    if not isinstance(error, ImportError):
        return None
    if sys.stderr is not None:
        sys.stderr.write(f"{PROGRAM}: {_one_line(error)}\nreinstall democrai-sandbox in {sys.prefix}\n")
    return _FAILED


def _defect(error: Exception) -> int:
    """Say that something unforeseen has happened, in a line and not in a traceback."""
    if sys.stderr is not None:
        sys.stderr.write(
            f"internal_error: {type(error).__name__}: {_one_line(error)}\n"
            f"This is a defect of {PROGRAM}. Set {_TRACEBACK}=1 to see where it happened, and report it.\n"
        )
    return _FAILED


def _one_line(error: Exception) -> str:
    """Return the text of an error, without anything that a terminal would take for a command."""
    text = " ".join(str(error).split())
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _parsed(command: Command, given: list[str]) -> argparse.Namespace:
    """Read the command line; ends here if it asks for help or is wrong."""
    from .parsing import parser_of  # noqa: PLC0415 - see above

    return parser_of(command).parse_args(given)


def _done(options: argparse.Namespace) -> int:
    """Do what was asked for: only now the module that does it is imported."""
    from importlib import import_module  # noqa: PLC0415 - see above

    from .output import Output  # noqa: PLC0415

    module, _, name = options.run.partition(":")
    with Output(is_json=getattr(options, "json", False)) as output:
        return int(getattr(import_module(f".{module}", __package__), name)(options, output))


def _heed_signals() -> None:
    from .signals import heed_signals  # noqa: PLC0415 - see above

    heed_signals()


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    signals = sys.modules.get(f"{__package__}.signals")  # nothing is imported now; without it, it was Ctrl-C
    if signals is not None:
        signals.end_by(interrupt)
    return _INTERRUPTED


def _unknown(name: str) -> int:
    from difflib import get_close_matches  # noqa: PLC0415 - see above

    near = get_close_matches(name[:_LONGEST], [command.name for command in COMMANDS], 1)
    return _misused(f"there is no command {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def _misused(what: str) -> int:
    what = what if len(what) <= _LONGEST else f"{what[:_LONGEST]}…"
    if sys.stderr is not None:
        sys.stderr.write(f"{PROGRAM}: {what}\n{PROGRAM} --help lists the commands\n")
    return _USAGE


def _nobody_reads() -> int:
    """End in silence as the programs around it do: the reader of the output has enough of it."""
    give_up(1)
    return _CLOSED_PIPE


def _fill_streams() -> None:
    """Open what was closed of the standard streams: else a database would get the number, and what is meant for them.

    The number that is free and lowest is the one that is opened.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
