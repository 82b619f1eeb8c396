"""Failed and interrupted commands: error output, exit status, and termination signals."""

from __future__ import annotations

import os
import signal
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox import errors

from .commands import PROGRAM
from .output import Exit, shortened, visible

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType

    from .connection import NodeClient

_STATUSES: Mapping[type[errors.SandboxError], Exit] = MappingProxyType(
    {
        errors.CommandMisused: Exit.USAGE,
        errors.NodeUnreachable: Exit.UNREACHABLE,
        errors.DatabaseUnreachable: Exit.UNREACHABLE,
        errors.ExternalAccessCheckFailed: Exit.UNREACHABLE,
        errors.DecisionConflict: Exit.CONFLICT,
        errors.AccountConflict: Exit.CONFLICT,
    }
)
_NEW_TOKEN = "create a new token with democrai-sandbox admin token create"  # noqa: S105 - a fix
_FIXES = MappingProxyType({401: f"the token is unknown or has expired; {_NEW_TOKEN}"})
_FIXES_BY_CODE = MappingProxyType({"scope_missing": f"{_NEW_TOKEN}, with that scope"})
"""Fixes for refusals because of the token."""
_OF_NODES = MappingProxyType({409: Exit.CONFLICT, 502: Exit.UNREACHABLE, 503: Exit.UNREACHABLE, 504: Exit.UNREACHABLE})

_LONGEST = 4000
"""Maximum length of the text of a node."""
_MISREAD = (LookupError, TypeError, ValueError, AttributeError)
"""Errors raised by reading a malformed answer."""


def report_error(error: Exception, asked: NodeClient | None = None) -> int | None:
    """Report an error and return the exit status; return None, without a report, for an unexpected error.

    ``asked`` is the node of the command: an answer that cannot be read is reported as its error.
    """
    if asked is not None and asked.has_answered and isinstance(error, _MISREAD):
        error = asked.misread(error)
    text = error_text(error)
    if text is None:
        return None
    # Names, targets and files in the text can come from extensions: escape control characters.
    if sys.stderr is not None:
        print("\n".join(map(visible, text.split("\n"))), file=sys.stderr)  # noqa: T201 - a command's answer
    return status_of(error)


def status_of(error: Exception) -> Exit:
    """Return the exit status for an error."""
    if isinstance(error, errors.NodeRefused):
        return _OF_NODES.get(error.status, Exit.FAILED)
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), Exit.FAILED)


def error_text(error: Exception) -> str | None:
    """Return the error text with its code once; None for an unexpected error."""
    if isinstance(error, errors.ExternalAccessCheckFailed):
        return f"{error.code}: {_one_line(error.__cause__)}" if error.__cause__ else error.code
    if isinstance(error, errors.NodeRefused):
        return _refusal(error)
    if isinstance(error, errors.SandboxError):
        text = str(error)
        return text if text.startswith(f"{error.code}: ") else error.diagnostics()
    if isinstance(error, OSError):  # such as an unreadable file or a full disk
        return f"{errors.CommandRefused.code}: {_of_system(error)}"
    if isinstance(error, ImportError):
        return _one_line(error) if str(error).startswith(f"{PROGRAM} needs ") else _not_imported(error)
    return None


def _of_system(error: OSError) -> str:
    """Return the system error with the file names."""
    if not error.strerror:
        return _one_line(error)
    named = [os.fsdecode(name) for name in (error.filename, error.filename2) if isinstance(name, str | bytes)]
    return f"{' -> '.join(named)}: {error.strerror}" if named else error.strerror


def _not_imported(error: ImportError) -> str:
    """Return the text for an incomplete or broken installation."""
    name = error.name or ""
    what = f"the package {name.partition('.')[0]!r} cannot be imported: " if name else ""
    return f"{errors.HostRefused.code}: {what}{_one_line(error)}\nreinstall it in {sys.prefix}"


def _refusal(error: errors.NodeRefused) -> str:
    """Return the answer of the node; texts of extensions in it cannot start new lines."""
    said = shortened(errors.NodeRefused(error.status, _visible(error.answer)).diagnostics(), _LONGEST)
    fix = _FIXES.get(error.status) or _FIXES_BY_CODE.get(str(error.answer.get("code")))
    return f"{said}: {fix}" if fix else said


def _visible(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _visible(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_visible(one) for one in value]
    return visible(value) if isinstance(value, str) else value


def _one_line(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())


_ENDING = (signal.SIGTERM, signal.SIGHUP)
"""The second is sent when a terminal closes."""


def heed_signals() -> None:
    """Let these signals raise ``KeyboardInterrupt`` with their number. Ignored ones, as with nohup, stay ignored.

    So the command cleans up as after Ctrl-C; ``end_by`` then ends the process.
    """
    for number in _ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def end_by(interrupt: KeyboardInterrupt) -> None:
    """End this process by the signal that raised this, so that its parent can see it; not for Ctrl-C."""
    for number in interrupt.args:
        if number in _ENDING:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


def _interrupt(number: int, _: FrameType | None) -> None:
    for one in _ENDING:
        signal.signal(one, signal.SIG_IGN)  # the cleanup must not be interrupted
    raise KeyboardInterrupt(number)
