"""Help that an error class carries: cause, fix and example. ``errors.catalogue`` makes pages of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Word:
    """A word beside a code, such as the helper's reason, with a separate meaning and fix."""

    word: str
    meaning: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Guidance:
    """Help for one code, in Markdown without links. The docstring of the class holds the title and the meaning."""

    cause: str
    fix: str
    example: str
    """A call or command, and the error that it gets."""
    shape: str = ""
    """The documented form of the error line."""
    words: tuple[Word, ...] = ()
    see: tuple[str, ...] = ()
    """Pages in ``docs``, with an anchor."""
