"""Files and confirmation questions of commands."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from democrai_sandbox._util import atomic_file
from democrai_sandbox.errors import CommandMisused, CommandRefused

from .output import visible

if TYPE_CHECKING:
    from collections.abc import Iterator


def confirm(question: str, *, yes: bool) -> None:
    """Return if the answer is yes, and raise otherwise. The question names the change and must be ``visible``.

    A command asks at most one question.
    """
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


READABLE = 0o644


@contextmanager
def open_text(file: str, *, fix: str) -> Iterator[IO[str]]:
    """Open a text file; bytes that are not UTF-8 are replaced."""
    try:
        stream = open(file, encoding="utf-8", errors="replace")  # noqa: SIM115, PTH123 - closed below; as it was typed
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandRefused(f"{visible(file)} cannot be read: {reason}", fix=fix) from None
    with stream:
        yield stream


@contextmanager
def write_whole(file: str, *, fix: str, mode: int = atomic_file.OWN) -> Iterator[IO[bytes]]:
    """Open a file, to be written completely or not at all: it gets its name when complete and is removed otherwise.

    ``mode`` is reduced by the umask of this process.
    """
    try:
        with atomic_file.atomic_write(Path(file), mode=mode & ~_mask()) as made, made.open("wb") as stream:
            yield stream
    except OSError as error:
        raise CommandRefused(f"{visible(file)} cannot be written: {error.strerror}", fix=fix) from None


def _mask() -> int:
    """Return the umask; safe because the process has one thread at this point."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
