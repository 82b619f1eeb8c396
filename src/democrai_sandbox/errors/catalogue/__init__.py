"""Catalog of all codes, collected from the error classes, with the codes that only answers contain.

``explain`` and the console show it, and ``python -m democrai_sandbox.errors docs/errors`` writes the pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import (
    access,
    accounts,
    ai,
    api,
    commands,
    denials,
    extensions,
    guard,
    host,
    kernel,
    mcp,
    media,
    registry,
    workers,
)
from democrai_sandbox.policy import SandboxError, nearest, problems

from .answers import ANSWERS, DECISIONS, TOOLS
from .entry import Entry, Layer, entry_of_class
from .symptoms import SYMPTOMS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = ["ENTRIES", "FAMILIES", "Entry", "Family", "Layer", "entry_of"]


@dataclass(frozen=True, slots=True)
class Family:
    """Codes that share a page."""

    name: str
    """The file name of the page, without its ending."""
    title: str
    about: str
    entries: tuple[Entry, ...]


_seen: set[type] = {Exception}


def _classes(layer: Layer, *modules: ModuleType) -> tuple[Entry, ...]:
    """Return the entries of the classes in these modules; imported classes belong to the module called first."""
    kinds = [kind for module in modules for kind in vars(module).values() if _is_new(kind)]
    own = [kind for kind in kinds if "code" in vars(kind)]
    same = {
        kind.code: [other.__name__ for other in kinds if other.code == kind.code and other not in own] for kind in own
    }
    return tuple(entry_of_class(kind, layer, same[kind.code]) for kind in own)


def _is_new(kind: object) -> bool:
    is_new = isinstance(kind, type) and issubclass(kind, SandboxError) and kind not in _seen
    if isinstance(kind, type):
        _seen.add(kind)
    return is_new


_INPUT = _classes(Layer.INPUT, problems)
FAMILIES: tuple[Family, ...] = (
    Family(
        "denials",
        "Denials, misuse of the guard, and invalid input",
        "The guard refused an access, was used in an unsafe way, or an input is malformed.",
        (*_classes(Layer.GUARD, denials, guard), *_INPUT),
    ),
    Family(
        "requests",
        "Requests and decisions",
        "Answers of the access check, and errors of filing and answering requests.",
        (*_classes(Layer.ACCESS, access), *DECISIONS),
    ),
    Family(
        "extensions",
        "Extensions, tasks and workers",
        "Errors of loading, installing and calling extensions, and of their worker processes.",
        _classes(Layer.RUNTIME, extensions, workers),
    ),
    Family(
        "services",
        "Tools, agents, MCP servers and media",
        "Errors of the services that extensions use through the SDK, and codes that a model gets as a tool result.",
        (*_classes(Layer.RUNTIME, ai), *TOOLS, *_classes(Layer.RUNTIME, mcp, registry, media)),
    ),
    Family(
        "host",
        "Host, configuration and command line",
        "Errors of starting a host and of the command `democrai-sandbox`.",
        (*_classes(Layer.HOST, host), *_classes(Layer.COMMAND, commands)),
    ),
    Family(
        "accounts",
        "Accounts and sign-in",
        "Errors of users, sessions and tokens.",
        _classes(Layer.CONSOLE, accounts),
    ),
    Family(
        "api",
        "Console and API",
        "Answers to HTTP requests. The problem document of the API has the code and its page as `type`.",
        (*ANSWERS, *_classes(Layer.CONSOLE, api)),
    ),
    Family(
        "kernel",
        "Kernel layer",
        "Errors of Landlock, seccomp, the spawn server and the helper, and symptoms without a code.",
        (*_classes(Layer.KERNEL, kernel), *SYMPTOMS),
    ),
)
ENTRIES: Mapping[str, Entry] = MappingProxyType({one.code: one for family in FAMILIES for one in family.entries})


def entry_of(code: str) -> Entry:
    """Return the entry of a code; raise ``ErrorUnknown`` with the nearest code for an unknown one."""
    if code in ENTRIES:
        return ENTRIES[code]
    near = nearest(code, ENTRIES)
    hint = f"; did you mean {near}?" if near else ""
    raise commands.ErrorUnknown(f"unknown error code {code[:100]!r}{hint}")
