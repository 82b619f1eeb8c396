"""Confirmation questions on the terminal, at most one per command."""

from __future__ import annotations

import os
import stat
import sys

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .output import visible


def confirm(question: str, *, yes: bool) -> None:
    """Return if the answer is yes, and raise otherwise. The question names the change and must be ``visible``."""
    if yes:
        return
    if not is_answerable():
        raise CommandMisused("this command needs a confirmation, but no terminal is available", fix="add --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandRefused("not confirmed; nothing was changed")


def confirm_replacing(file: str, *, yes: bool) -> None:
    """Return if the file does not exist or may be replaced. Links, devices and folders are refused.

    A link of another user could redirect the file, and ``/dev/null`` must not be replaced.
    """
    try:
        mode = os.lstat(file).st_mode
    except OSError:
        return  # writing the file gives the better error
    if not stat.S_ISREG(mode):
        raise CommandRefused(f"{visible(file)} is not a regular file", fix="name another one")
    confirm(f"replace {visible(file)}?", yes=yes)


def secret(prompt: str) -> str:
    """Return a typed text without showing it, or the first line of standard input if that is not a terminal."""
    if is_answerable():
        from getpass import getpass  # noqa: PLC0415 - seldom needed

        return getpass(prompt, sys.stderr)
    return sys.stdin.readline().rstrip("\n")


def is_answerable() -> bool:
    """Return whether a user can see and answer a question."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()
