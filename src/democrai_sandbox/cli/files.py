"""Files of commands. A file is written completely or not at all."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from democrai_sandbox._util import atomic_file
from democrai_sandbox.errors import CommandRefused

from .output import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    """Open a file for writing; it gets its name when complete and is removed otherwise.

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
