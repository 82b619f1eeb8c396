"""The standard streams: how wide a terminal is, whether it shows colours, and giving up a stream."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from typing import TextIO

_USUAL = 80


def columns(stream: TextIO | None) -> int:
    """Return how wide a terminal is; 80 for one that does not say, without ``shutil``, which is slow to import."""
    try:
        return (os.get_terminal_size(stream.fileno()).columns if stream else 0) or _USUAL
    except (OSError, ValueError):
        return _USUAL


def has_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal that shows colours, and nobody asked for none."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def give_up(number: int) -> None:
    """Have what is left for a stream that is not read go nowhere: at the end it would fail once more."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)
    except OSError:
        return
