"""Questions to whoever typed the command: only where there is a terminal, and never more than one for an act."""

from __future__ import annotations

import os
import stat
import sys

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .output import visible


def confirm(question: str, *, yes: bool) -> None:
    """Go on if the answer is yes. The question repeats what is about to change; it has to be ``visible``."""
    if yes:
        return
    if not is_answerable():
        raise CommandMisused("this asks before it changes something, and there is no terminal", fix="add --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandRefused("it was not confirmed, and nothing was changed")


def confirm_replacing(file: str, *, yes: bool) -> None:
    """Go on if nothing is there, or a file that may be replaced. Links, devices and folders are left alone.

    A link that somebody else has put there would say where a file is written, and ``/dev/null`` is everybody's.
    """
    try:
        mode = os.lstat(file).st_mode
    except OSError:
        return  # what is wrong with it, writing it says best
    if not stat.S_ISREG(mode):
        raise CommandRefused(f"{visible(file)} is no plain file", fix="name another one")
    confirm(f"replace {visible(file)}?", yes=yes)


def secret(prompt: str) -> str:
    """Return what is typed without showing it, or the first line of standard input where it is no terminal."""
    if is_answerable():
        from getpass import getpass  # noqa: PLC0415 - seldom needed

        return getpass(prompt, sys.stderr)
    return sys.stdin.readline().rstrip("\n")


def is_answerable() -> bool:
    """Whether somebody sees a question and can answer it."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
