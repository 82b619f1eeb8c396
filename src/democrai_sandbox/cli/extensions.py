"""``democrai-sandbox extensions``: list extensions, install engines and extractors, and change their settings."""

from __future__ import annotations

import json
import time
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

    from .node import Node
    from .output import Output

_HEADS = ("KIND", "NAME", "STATE", "VERSION", "PROBLEMS")
_MOODS = {"ok": Mood.OK, "broken": Mood.BAD, "not_installed": Mood.WARNING, "outdated": Mood.WARNING}
_PAUSE = 0.5


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List extensions."""
    items = places.node(options).get("/extensions")["items"]
    if output.is_json:
        output.data("extensions.list/1", {"items": items})
    elif items:
        rows = [
            (one["kind"], one["name"], one["state"], one["version"] or "-", one["problem_count"] or "-")
            for one in items
        ]
        output.table(_HEADS, rows, _MOODS)
    else:
        output.say("no extension was found; set modules_path, engines_path or extractors_path in the configuration")
    return Exit.OK


def run_install(options: argparse.Namespace, output: Output) -> int:
    """Install an engine or extractor; the exit status is that of the installation."""
    node, place = places.node(options), _place(options.subject)
    status = node.post(f"{place}/install", {"again": options.again})
    if not options.no_wait:
        status = _waited(node, place, output)
    is_there = status["state"] == "ready" and not status["problem"]
    if output.is_json:
        output.data("extensions.install/1", {"subject": options.subject, **status})
    elif is_there:
        output.say(f"{visible(options.subject)} is installed")
    elif options.no_wait:
        output.say(f"{visible(options.subject)} is being installed")
    else:
        _say_failure(output, options.subject, status)
    return Exit.OK if options.no_wait or is_there else Exit.FAILED


def _waited(node: Node, place: str, output: Output) -> dict[str, Any]:
    """Wait for an installation, show its progress, and return the exit status."""
    while True:
        status: dict[str, Any] = node.get(place)["install"] or {"state": "missing", "problem": "", "progress": None}
        if status["state"] != "installing":
            return status
        step = status["progress"]
        if step is not None:
            output.progress(visible(f"{step['stage']} {step['text']}"))
        time.sleep(_PAUSE)


def _say_failure(output: Output, subject: str, status: Mapping[str, Any]) -> None:
    output.say(f"{visible(subject)} could not be installed", Mood.BAD)
    for line in str(status["problem"] or "the log of the node has the reason").splitlines():
        output.say(f"  {visible(line)}")


def run_settings(options: argparse.Namespace, output: Output) -> int:
    """Show settings."""
    found = places.node(options).get(f"{_place(options.subject)}/settings")
    _show(output, "settings", options.subject, found)
    return Exit.OK


def run_set(options: argparse.Namespace, output: Output) -> int:
    """Change settings."""
    wanted = {name: written_value(text) for name, text in options.values}
    if not wanted and not options.unset and not options.secret:
        raise CommandMisused("no change was given", fix="give NAME=VALUE, --secret or --unset")
    node = places.node(options)
    names = [*wanted, *([options.secret] if options.secret else []), *(f"no {name}" for name in options.unset)]
    asking.confirm(f"change settings of {visible(options.subject)}: {visible(', '.join(names))}?", yes=options.yes)
    if options.secret:
        wanted[options.secret] = _secret(options.secret)
    order = {"set": wanted, "unset": options.unset}
    found = node.patch(f"{_place(options.subject)}/settings", order)
    _show(output, "set", options.subject, found)
    return Exit.OK


def _secret(name: str) -> str:
    found = asking.secret(f"{visible(name)}: ")
    if not found:
        raise CommandRefused(f"{visible(name)} is empty, and nothing was changed", fix="use --unset to remove it")
    return found


def _show(output: Output, verb: str, subject: str, found: Mapping[str, Any]) -> None:
    if output.is_json:
        output.data(f"extensions.{verb}/1", {"subject": subject, **found})
        return
    if found["settings"]:
        rows = [(name, _shown(value)) for name, value in sorted(found["settings"].items())]
        output.table(("NAME", "VALUE"), rows)
    else:
        output.say(f"no settings for {visible(subject)}")
    if found["source"] == "configuration":
        output.say("set in the configuration; change them there")


def _place(subject: str) -> str:
    kind, _, name = subject.partition(":")
    return f"/extensions{below(kind, name)}"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
