"""Entries of the catalog: made from the error classes, and read from text files for other codes and for symptoms."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from democrai_sandbox.policy import SandboxError
    from democrai_sandbox.policy.problems import Word


class ErrorLayer(StrEnum):
    """Part of the sandbox that reports a code."""

    GUARD = "guard"
    ACCESS = "access service"
    RUNTIME = "runtime"
    KERNEL = "kernel layer"
    HOST = "host"
    CONSOLE = "console and API"
    COMMAND = "command line"
    INPUT = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEntry:
    """Help for one code, in Markdown without links."""

    code: str
    title: str
    layer: ErrorLayer
    shape: str = ""
    """The documented form of the error line."""
    meaning: str
    cause: str
    fix: str
    example: str
    classes: tuple[str, ...] = ()
    """The exceptions with this code; empty for a code that only answers contain."""
    bases: tuple[str, ...] = ()
    """The base classes to catch, apart from ``SandboxError``."""
    words: tuple[Word, ...] = ()
    see: tuple[str, ...] = ()
    """Pages in ``docs``, with an anchor."""
    is_ours: bool = True
    """False for a symptom that can have other causes than the sandbox."""


_PART = re.compile(r"^(Shape|Cause|Fix|Example|See):", re.MULTILINE)


def entry_of_class(kind: type[SandboxError], layer: ErrorLayer, others: Collection[str] = ()) -> ErrorEntry:
    """Return the entry of an error class: its docstring is the title and the meaning.

    ``others`` are subclasses with the same code. Under ``python -OO``, which removes docstrings, the code is the title.
    """
    title, _, meaning = cleandoc(kind.__doc__ or kind.code).replace("``", "`").partition("\n")
    return ErrorEntry(
        code=kind.code,
        title=title.removesuffix("."),
        layer=layer,
        meaning=_one_line(meaning),
        **_guidance(kind.guidance),
        classes=(kind.__name__, *others),
        bases=tuple(base.__name__ for base in kind.__bases__ if base.__name__ not in {"SandboxError", "Exception"}),
        words=vars(kind).get("guidance_words", ()),
    )


def _entries(layer: ErrorLayer, name: str, *, is_ours: bool = True) -> tuple[ErrorEntry, ...]:
    """Return the entries of a file: headings ``# code: title``, each followed by the meaning and the guidance."""
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    made = []
    for section in f"\n{text}".split("\n# ")[1:]:
        heading, _, rest = section.partition("\n")
        code, _, title = heading.partition(": ")
        meaning = _one_line(_PART.split(rest)[0])
        given = _guidance(rest)
        made.append(ErrorEntry(code=code, title=title, layer=layer, meaning=meaning, **given, is_ours=is_ours))
    return tuple(made)


def _guidance(text: str) -> dict[str, Any]:
    """Return the fields of an entry that a text has as ``Cause:``, ``Fix:``, ``Example:``, ``Shape:`` and ``See:``."""
    _, *parts = _PART.split(cleandoc(text))
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return {
        "shape": found.get("Shape", "").strip(),
        "cause": _one_line(found["Cause"]),
        "fix": _one_line(found["Fix"]),
        "example": found["Example"].strip(),
        "see": tuple(found.get("See", "").split()),
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())


DECISIONS = _entries(ErrorLayer.ACCESS, "decisions.txt")
TOOLS = _entries(ErrorLayer.RUNTIME, "tools.txt")
ANSWERS = _entries(ErrorLayer.CONSOLE, "answers.txt")
SYMPTOMS = _entries(ErrorLayer.KERNEL, "symptoms.txt", is_ours=False)
