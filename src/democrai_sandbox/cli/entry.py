"""``democrai-sandbox``: select the command and report its errors.

Only the modules of the command are imported, and almost none for ``--help``.
"""

from __future__ import annotations

import io
import os
import sys

from democrai_sandbox import __version__

from .commands import COMMANDS, PROGRAM, overview
from .terminal import give_up

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

_FAILED, _USAGE, _CLOSED_PIPE, _INTERRUPTED = 1, 2, 141, 130
"""Copied from ``Exit``, which is slow to import."""
_LONGEST = 300
_TRACEBACK = "DEMOCRAI_TRACEBACK"
"""Variable that shows the traceback of an unexpected error."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status (see ``Exit``)."""
    _fill_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not given or given[0].startswith("-"):
            return _about(given)
        return _carried_out(given, heeds_signals=arguments is None)
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except BrokenPipeError:
        give_up(1)  # end silently when the reader of the output has closed it, as other programs in a pipe do
        return _CLOSED_PIPE


def _about(given: list[str]) -> int:
    """Handle a command line without a command."""
    if sys.stdout is None:
        return _FAILED
    if given and given[0] in {"-h", "--help"}:
        sys.stdout.write(overview())
    elif given and given[0] == "--version":
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
    else:
        return _misused(f"{given[0]!r} is not an option" if given else "a command is missing")
    sys.stdout.flush()
    return 0


def _carried_out(given: list[str], *, heeds_signals: bool) -> int:
    command = next((one for one in COMMANDS if one.name == given[0]), None)
    if command is None:
        return _unknown(given[0])
    for stream in (sys.stdout, sys.stderr):
        # Characters missing in the terminal's encoding are escaped, so that a foreign name does not cause an error.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    ending: Callable[..., int | None] = _plain_ending
    options = None
    try:
        from .parser import parser_of  # noqa: PLC0415 - see above

        options = parser_of(command).parse_args(given[1:])  # exits for --help and usage errors
        # Imported before the command, because an import can fail or be refused after an error.
        from .errors import heed_signals, report_error  # noqa: PLC0415 - see above

        ending = report_error
        if heeds_signals:
            heed_signals()
        return _done(options)
    except BrokenPipeError:
        raise
    except Exception as error:
        status = ending(error, getattr(options, "asked", None))
        if status is None and os.environ.get(_TRACEBACK):
            raise
        return _defect(error) if status is None else status


def _plain_ending(error: Exception, _: object) -> int | None:
    """Report a broken installation, without the usual error output."""
    if not isinstance(error, ImportError):
        return None
    if sys.stderr is not None:
        sys.stderr.write(f"{PROGRAM}: {_one_line(error)}\nreinstall democrai-sandbox in {sys.prefix}\n")
    return _FAILED


def _defect(error: Exception) -> int:
    """Report an unexpected error in one line instead of a traceback."""
    if sys.stderr is not None:
        sys.stderr.write(
            f"internal_error: {type(error).__name__}: {_one_line(error)}\n"
            f"This is a bug in {PROGRAM}. Set {_TRACEBACK}=1 to see the traceback, and report it.\n"
        )
    return _FAILED


def _one_line(error: Exception) -> str:
    """Return the text of an error without control characters."""
    text = " ".join(str(error).split())
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…"


def _done(options: argparse.Namespace) -> int:
    """Import the module of the command and run it."""
    from importlib import import_module  # noqa: PLC0415 - see above

    from .output import CommandOutput  # noqa: PLC0415

    module, _, name = options.run.partition(":")
    with CommandOutput(is_json=getattr(options, "json", False)) as output:
        return int(getattr(import_module(f".{module}", __package__), name)(options, output))


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    ending = sys.modules.get(f"{__package__}.errors")  # no import at this point; if it is missing, it was Ctrl-C
    if ending is not None:
        ending.end_by(interrupt)
    return _INTERRUPTED


def _unknown(name: str) -> int:
    from difflib import get_close_matches  # noqa: PLC0415 - see above

    near = get_close_matches(name[:_LONGEST], [command.name for command in COMMANDS], 1)
    return _misused(f"unknown command {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))


def _misused(what: str) -> int:
    what = what if len(what) <= _LONGEST else f"{what[:_LONGEST]}…"
    if sys.stderr is not None:
        sys.stderr.write(f"{PROGRAM}: {what}\n{PROGRAM} --help lists the commands\n")
    return _USAGE


def _fill_streams() -> None:
    """Reopen closed standard streams: a database could otherwise get their number, the lowest free one, and output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
