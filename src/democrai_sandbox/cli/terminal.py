"""Standard streams: width and colors of a terminal, and abandoning a stream."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import TextIO


_USUAL = 80


def columns(stream: TextIO | None) -> int:
    """Return the width of a terminal, 80 if unknown; without ``shutil``, which is slow to import."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns if stream else 0) or _USUAL
    except (OSError, ValueError):
        return _USUAL


def has_colour(stream: TextIO) -> bool:
    """Return whether a stream is a terminal with colors, and colors are not disabled."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def give_up(number: int) -> None:
    """Discard the rest of a stream that is not read: flushing it at exit would fail again."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
    except OSError:
        return
