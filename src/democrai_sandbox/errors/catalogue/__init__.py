"""Every code: what it means, which layer speaks, where it comes from and what to do. The one source for all texts.

The pages in ``docs/errors`` are made from it (``python -m democrai_sandbox.errors docs/errors``), and ``explain``
answers from it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.errors.commands import ErrorUnknown
from democrai_sandbox.policy import nearest

from .approvals import APPROVALS
from .console import CONSOLE
from .denials import DENIALS
from .entry import Entry, Layer, Word
from .extensions import EXTENSIONS
from .hosting import HOSTING
from .kernel import KERNEL
from .services import SERVICES
from .symptoms import SYMPTOMS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ENTRIES", "FAMILIES", "Entry", "Layer", "Word", "entry_of"]

FAMILIES: tuple[tuple[str, tuple[Entry, ...]], ...] = (
    ("Denials, misuse and bad input", DENIALS),
    ("Approvals", APPROVALS),
    ("Extensions", EXTENSIONS),
    ("Tools, agents, pipelines, MCP servers, media", SERVICES),
    ("Hosts and the command line", HOSTING),
    ("Console and API", CONSOLE),
    ("The kernel layer", KERNEL),
    ("Symptoms of the kernel layer", SYMPTOMS),
)
ENTRIES: Mapping[str, Entry] = MappingProxyType({one.code: one for _, family in FAMILIES for one in family})


def entry_of(code: str) -> Entry:
    """Return what is known about a code; one that there is not is refused, with the nearest."""
    if code in ENTRIES:
        return ENTRIES[code]
    near = nearest(code, ENTRIES)
    hint = f"; did you mean {near}?" if near else ""
    raise ErrorUnknown(f"there is no error code {code[:100]!r}{hint}")
