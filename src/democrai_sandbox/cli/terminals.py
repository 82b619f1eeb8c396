"""What a terminal is like: how wide, and whether it shows colours."""

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
