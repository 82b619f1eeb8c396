"""``democrai-sandbox status``: show what a node enforces now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import places
from .exits import Exit
from .layers import show_layers, trouble
from .output import Mood, visible
from .times import when

if TYPE_CHECKING:
    import argparse

    from .output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Show every layer of a node."""
    node = places.node(options)
    found = node.get("/status")
    if output.is_json:
        output.data("status.show/1", found)
        return Exit.OK if found["ok"] else Exit.FAILED
    head = (
        f"node {found['node']} at {node.url}, version {found['version']}, process {found['pid']}, {when(found['at'])}"
    )
    output.line(visible(head))
    show_layers(output, found["lines"])
    wrong = trouble(found["lines"])
    output.line(wrong or "everything that the configuration enables works", Mood.BAD if wrong else Mood.OK)
    return Exit.OK if found["ok"] else Exit.FAILED
