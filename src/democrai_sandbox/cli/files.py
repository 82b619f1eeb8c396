"""Files that commands read, and files that they write: those are there whole or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from democrai_sandbox.access import files
from democrai_sandbox.errors import CommandRefused

from .output import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

READABLE = 0o644


@contextmanager
def text_of(file: str, *, fix: str) -> Iterator[IO[str]]:
    """Open a text that a command was pointed at; characters that are not UTF-8 are replaced."""
    try:
        stream = open(file, encoding="utf-8", errors="replace")  # noqa: SIM115, PTH123 - closed below; as it was typed
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandRefused(f"{visible(file)} cannot be read: {reason}", fix=fix) from None
    with stream:
        yield stream


@contextmanager
def whole(file: str, *, fix: str, mode: int = files.OWN) -> Iterator[IO[bytes]]:
    """Give a file to write; it gets its name when all is written, and is gone if that does not come to pass.

    ``mode`` is what others may do with it, as far as the mask of this process gives it to them.
    """
    try:
        with files.whole(Path(file), mode=mode & ~_mask()) as made, made.open("wb") as stream:
            yield stream
    except OSError as error:
        raise CommandRefused(f"{visible(file)} cannot be written: {error.strerror}", fix=fix) from None


def _mask() -> int:
    """Return what this process takes from the rights of its files; it has one thread by now."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
