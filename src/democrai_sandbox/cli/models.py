"""``democrai-sandbox models``: the models that agents can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import places
from .exits import Exit
from .output import Mood, visible

if TYPE_CHECKING:
    import argparse

    from .output import Output

_HEADS = ("NAME", "STATE", "ADDRESS", "AGENTS")


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List models; the status says whether one is missing."""
    items = places.node(options).get("/models")["items"]
    missing = [one["name"] for one in items if not one["is_configured"]]
    if output.is_json:
        output.data("models.list/1", {"items": items})
    elif items:
        rows = [(one["name"], _state(one), one["target"] or "-", ", ".join(one["agents"]) or "-") for one in items]
        output.table(_HEADS, rows, {"configured": Mood.OK, "missing": Mood.BAD})
    else:
        output.say("no model is configured, and no agent names one; set extensions.models in the configuration")
    if not output.is_json:
        for name in missing:
            output.say(f"to fix it: add extensions.models.{visible(name)} to the configuration, and restart the node")
    return Exit.FAILED if missing else Exit.OK


def _state(model: dict[str, object]) -> str:
    return "configured" if model["is_configured"] else "missing"
