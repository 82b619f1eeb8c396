"""What is known about one code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Layer(StrEnum):
    """Which part of the sandbox speaks."""

    GUARD = "guard"
    ACCESS = "access service"
    RUNTIME = "runtime"
    KERNEL = "kernel layer"
    HOST = "host"
    CONSOLE = "console and API"
    COMMAND = "command line"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class Word:
    """A word that goes with a code, such as the reason of a helper, and stands for a cause of its own."""

    word: str
    meaning: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One code. The texts are Markdown without links: places to read on are in ``see``."""

    code: str
    title: str
    layer: Layer
    shape: str = ""
    """How the line looks, where it is documented."""
    meaning: str
    cause: str = ""
    fix: str = ""
    classes: tuple[str, ...] = ()
    """The exceptions that carry it; none for a word that only answers have."""
    remark: str = ""
    """What else there is to know about the exception."""
    words: tuple[Word, ...] = ()
    see: tuple[str, ...] = ()
    """Documents in ``docs``, with the place in them."""
    is_ours: bool = True
    """False for a symptom that others than us may have caused."""
