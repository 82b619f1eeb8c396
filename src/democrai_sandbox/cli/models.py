"""``democrai-sandbox models``: manage the models of agents."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandMisused, CommandRefused

from . import asking, places
from .arguments.values import written_value
from .exits import Exit
from .node import below
from .output import Mood, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from .output import Output

_HEADS = ("NAME", "STATE", "ADDRESS", "KEY", "AGENTS", "SET IN")
_LONGEST_KEY = 4096


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List models; the exit status is 1 if one is missing."""
    items = places.node(options).get("/models")["items"]
    missing = [one["name"] for one in items if not one["is_configured"]]
    if output.is_json:
        output.data("models.list/1", {"items": items})
    elif items:
        output.table(_HEADS, [_row(one) for one in items], {"configured": Mood.OK, "missing": Mood.BAD})
    else:
        output.say("no models yet, and no agent uses one; democrai-sandbox models add adds one")
    if not output.is_json:
        for name in missing:
            output.say(f"to fix it: democrai-sandbox models add {visible(name)} --endpoint URL --model TEXT")
    return Exit.FAILED if missing else Exit.OK


def run_add(options: argparse.Namespace, output: Output) -> int:
    """Add a model."""
    node = places.node(options)
    asking.confirm(f"add model {visible(options.name)} at {visible(options.endpoint)}?", yes=options.yes)
    order = {"name": options.name, **_facts(options), **_key(options)}
    return _told(output, "add", node.post("/models", order), "is added")


def run_change(options: argparse.Namespace, output: Output) -> int:
    """Change a model."""
    changes = _facts(options)
    names = [*changes, *(["api_key"] if options.ask_key or options.api_key_file or options.no_key else [])]
    if not names:
        raise CommandMisused("no change was given", fix="add --endpoint, --model, --ask-key or another option")
    node = places.node(options)
    asking.confirm(f"change model {visible(options.name)}: {', '.join(names)}?", yes=options.yes)
    changed = node.patch(f"/models{below(options.name)}", {**changes, **_key(options)})
    return _told(output, "change", changed, "is changed")


def run_remove(options: argparse.Namespace, output: Output) -> int:
    """Remove a model."""
    node = places.node(options)
    asking.confirm(f"remove model {visible(options.name)}?", yes=options.yes)
    return _told(output, "remove", node.delete(f"/models{below(options.name)}"), "is removed")


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    timeout = None if options.timeout_ms is None else options.timeout_ms / 1000
    chosen = {name: written_value(text) for name, text in options.option} or None
    given = {
        "endpoint": options.endpoint,
        "model": options.model,
        "timeout_seconds": timeout,
        "options": chosen,
    }
    return {name: value for name, value in given.items() if value is not None}


def _key(options: argparse.Namespace) -> dict[str, str]:
    """Return the key to send, or an empty dict if no key was given."""
    if options.no_key:
        return {"api_key": ""}
    if options.api_key_file is not None:
        return {"api_key": _present(_first_line(options.api_key_file))}
    return {"api_key": _present(asking.secret("API key: "))} if options.ask_key else {}


def _first_line(file: str) -> str:
    try:
        with Path(file).open("rb") as stream:
            return stream.readline(_LONGEST_KEY + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise CommandRefused(f"{visible(file)} cannot be read: {error.strerror}", fix="name another file") from None


def _present(key: str) -> str:
    if not key:
        raise CommandRefused(
            "the key is empty, and nothing was changed", fix="remove the option for a model without a key"
        )
    return key


def _told(output: Output, verb: str, model: Mapping[str, Any], what: str) -> int:
    if output.is_json:
        output.data(f"models.{verb}/1", model)
    else:
        output.say(f"model {visible(model['name'])} {what}")
    return Exit.OK


def _row(model: Mapping[str, Any]) -> tuple[object, ...]:
    state = "configured" if model["is_configured"] else "missing"
    key = "yes" if model["has_key"] else "-"
    agents = ", ".join(model["agents"]) or "-"
    return (model["name"], state, model["target"] or "-", key, agents, model["source"] or "-")
