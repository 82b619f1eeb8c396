"""Catalog of all codes, collected from the error classes, with the codes that only answers contain.

``explain`` and the console show it, and ``python -m democrai_sandbox.errors docs/errors`` writes the pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors import access, accounts, api, commands, denials, extensions, host, kernel, services
from democrai_sandbox.policy import SandboxError, nearest, problems

from .entries import ANSWERS, DECISIONS, SYMPTOMS, TOOLS, ErrorEntry, ErrorLayer, entry_of_class

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

__all__ = ["ENTRIES", "FAMILIES", "ErrorEntry", "ErrorFamily", "ErrorLayer", "entry_of"]


@dataclass(frozen=True, slots=True)
class ErrorFamily:
    """Codes that share a page."""

    name: str
    """The file name of the page, without its ending."""
    title: str
    about: str
    entries: tuple[ErrorEntry, ...]


_seen: set[type] = {Exception}


def _classes(layer: ErrorLayer, *modules: ModuleType) -> tuple[ErrorEntry, ...]:
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
        (*_classes(ErrorLayer.ACCESS, access), *DECISIONS),
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
        (*_classes(ErrorLayer.RUNTIME, services), *TOOLS),
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
        (*ANSWERS, *_classes(ErrorLayer.CONSOLE, api)),
    ),
    ErrorFamily(
        "kernel",
        "Kernel layer",
        "Errors of Landlock, seccomp, the spawn server and the helper, and symptoms without a code.",
        (*_classes(ErrorLayer.KERNEL, kernel), *SYMPTOMS),
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
