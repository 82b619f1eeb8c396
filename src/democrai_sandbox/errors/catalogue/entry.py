"""Entries of the catalog: the help for one code."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from inspect import cleandoc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

    from democrai_sandbox.policy import SandboxError
    from democrai_sandbox.policy.guidance import Word


class Layer(StrEnum):
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
class Entry:
    """Help for one code, in Markdown without links."""

    code: str
    title: str
    layer: Layer
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


def entry_of_class(kind: type[SandboxError], layer: Layer, others: Collection[str] = ()) -> Entry:
    """Return the entry of an error class: its docstring is the title and the meaning.

    ``others`` are subclasses with the same code. Under ``python -OO``, which removes docstrings, the code is the title.
    """
    title, _, rest = cleandoc(kind.__doc__ or kind.code).replace("``", "`").partition("\n")
    guidance = kind.guidance
    return Entry(
        code=kind.code,
        title=title.removesuffix("."),
        layer=layer,
        shape=guidance.shape,
        meaning=" ".join(rest.split()),
        cause=guidance.cause,
        fix=guidance.fix,
        example=guidance.example,
        classes=(kind.__name__, *others),
        bases=tuple(base.__name__ for base in kind.__bases__ if base.__name__ not in {"SandboxError", "Exception"}),
        words=guidance.words,
        see=guidance.see,
    )
