"""Catalog of all codes, collected from the error classes, with the codes that only answers contain.

``explain`` and the console show it, and ``python -m democrai_sandbox.errors docs/errors`` writes the pages.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from inspect import cleandoc
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import access, accounts, api, commands, denials, extensions, host, kernel, services
from democrai_sandbox.policy import SandboxError, nearest, problems

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from types import ModuleType

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


__all__ = ["ENTRIES", "FAMILIES", "ErrorEntry", "ErrorFamily", "ErrorLayer", "entry_of"]


@dataclass(frozen=True, slots=True)
class ErrorFamily:
    """Codes that share a page."""

    name: str
    """The file name of the page, without its ending."""
    title: str
    about: str
    entries: tuple[ErrorEntry, ...]


_seen: set[type] = set()


def _classes(layer: ErrorLayer, module: ModuleType) -> tuple[ErrorEntry, ...]:
    """Return the entries of the classes in a module; imported classes belong to the module called first."""
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, SandboxError)]
    kinds = [kind for kind in kinds if kind not in _seen]
    _seen.update(kinds)
    own = [kind for kind in kinds if "code" in vars(kind)]
    same = {
        kind.code: [other.__name__ for other in kinds if other.code == kind.code and other not in own] for kind in own
    }
    return tuple(entry_of_class(kind, layer, same[kind.code]) for kind in own)


_INPUT = _classes(ErrorLayer.INPUT, problems)
FAMILIES: tuple[ErrorFamily, ...] = (
    ErrorFamily(
        "denials",
        "Denials, misuse of the guard, and invalid input",
        "The guard refused an access, was used in an unsafe way, or an input is malformed.",
        (*_classes(ErrorLayer.GUARD, denials), *_INPUT),
    ),
    ErrorFamily(
        "requests",
        "Requests and decisions",
        "Answers of the access check, and errors of filing and answering requests.",
        (*_classes(ErrorLayer.ACCESS, access), *_entries(ErrorLayer.ACCESS, "decisions.txt")),
    ),
    ErrorFamily(
        "extensions",
        "Extensions, tasks and workers",
        "Errors of loading, installing and calling extensions, and of their worker processes.",
        _classes(ErrorLayer.RUNTIME, extensions),
    ),
    ErrorFamily(
        "services",
        "Tools, agents, MCP servers and media",
        "Errors of the services that extensions use through the SDK, and codes that a model gets as a tool result.",
        (*_classes(ErrorLayer.RUNTIME, services), *_entries(ErrorLayer.RUNTIME, "tools.txt")),
    ),
    ErrorFamily(
        "host",
        "Host, configuration and command line",
        "Errors of starting a host and of the command `democrai-sandbox`.",
        (*_classes(ErrorLayer.HOST, host), *_classes(ErrorLayer.COMMAND, commands)),
    ),
    ErrorFamily(
        "accounts",
        "Accounts and sign-in",
        "Errors of users, sessions and tokens.",
        _classes(ErrorLayer.CONSOLE, accounts),
    ),
    ErrorFamily(
        "api",
        "Console and API",
        "Answers to HTTP requests. The problem document of the API has the code and its page as `type`.",
        (*_entries(ErrorLayer.CONSOLE, "answers.txt"), *_classes(ErrorLayer.CONSOLE, api)),
    ),
    ErrorFamily(
        "kernel",
        "Kernel layer",
        "Errors of Landlock, seccomp, the spawn server and the helper, and symptoms without a code.",
        (*_classes(ErrorLayer.KERNEL, kernel), *_entries(ErrorLayer.KERNEL, "symptoms.txt", is_ours=False)),
    ),
)
ENTRIES: Mapping[str, ErrorEntry] = MappingProxyType({one.code: one for family in FAMILIES for one in family.entries})


def entry_of(code: str) -> ErrorEntry:
    """Return the entry of a code; raise ``ErrorUnknown`` with the nearest code for an unknown one."""
    if code in ENTRIES:
        return ENTRIES[code]
    near = nearest(code, ENTRIES)
    hint = f"; did you mean {near}?" if near else ""
    raise commands.ErrorUnknown(f"unknown error code {code[:100]!r}{hint}")
