"""``democrai-sandbox``: which command was asked for, and what becomes of its errors.

Only what the command needs is imported, and next to nothing for ``--help``.
"""

from __future__ import annotations

import io
import os
import sys

from democrai_sandbox import __version__

from .commands import COMMANDS, PROGRAM, overview

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from .commands import Command

_FAILED, _USAGE, _CLOSED_PIPE, _INTERRUPTED = 1, 2, 141, 130
"""As in ``Exit``, which is slow to import."""
_LONGEST = 300


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
    options = None
    try:
        options = _parsed(command, given[1:])
        if heeds_signals:
            _heed_signals()
        return _done(options)
    except Exception as error:  # noqa: BLE001 - those that are not ours are raised again
        from .failing import ending  # noqa: PLC0415 - see above

        return ending(error, getattr(options, "asked", None))


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
    from .signals import end_by  # noqa: PLC0415 - see above

    end_by(interrupt)
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
    """End in silence as the programs around it do: whoever read the output has enough of it."""
    from .serving import give_up  # noqa: PLC0415 - see above

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
