"""``democrai-sandbox extensions``, ``mcp`` and ``models``: manage extensions, MCP servers and models of a node."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.cli.arguments.options import written_value
from democrai_sandbox.errors import CommandMisused, CommandRefused

from . import connection, files
from .connection import below
from .output import Exit, Mood, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from .connection import NodeClient
    from .output import CommandOutput

_EXTENSION_HEADS = ("KIND", "NAME", "STATE", "VERSION", "RUNS", "PROBLEMS")
_MOODS = {"ok": Mood.OK, "broken": Mood.BAD, "not_installed": Mood.WARNING, "outdated": Mood.WARNING}
_PAUSE = 0.5


def run_list(options: argparse.Namespace, output: CommandOutput) -> int:
    """List extensions."""
    items = connection.node(options).get("/extensions")["items"]
    if output.is_json:
        output.data("extensions.list/1", {"items": items})
    elif items:
        rows = [
            (
                *(one[name] for name in ("kind", "name", "state")),
                one["version"] or "-",
                one["mode"],
                one["problem_count"] or "-",
            )
            for one in items
        ]
        output.table(_EXTENSION_HEADS, rows, _MOODS)
    else:
        output.say("no extension was found; set modules_path, engines_path or extractors_path in the configuration")
    return Exit.OK


def run_install(options: argparse.Namespace, output: CommandOutput) -> int:
    """Install an engine or extractor; the exit status is that of the installation."""
    node, place = connection.node(options), _extension_path(options.subject)
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


def _waited(node: NodeClient, place: str, output: CommandOutput) -> dict[str, Any]:
    """Wait for an installation, show its progress, and return the exit status."""
    while True:
        status: dict[str, Any] = node.get(place)["install"] or {"state": "missing", "problem": "", "progress": None}
        if status["state"] != "installing":
            return status
        step = status["progress"]
        if step is not None:
            output.progress(visible(f"{step['stage']} {step['text']}"))
        time.sleep(_PAUSE)


def _say_failure(output: CommandOutput, subject: str, status: Mapping[str, Any]) -> None:
    output.say(f"{visible(subject)} could not be installed", Mood.BAD)
    for line in str(status["problem"] or "the log of the node has the reason").splitlines():
        output.say(f"  {visible(line)}")


def run_settings(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show settings."""
    found = connection.node(options).get(f"{_extension_path(options.subject)}/settings")
    _show_extensions(output, "settings", options.subject, found)
    return Exit.OK


def run_set(options: argparse.Namespace, output: CommandOutput) -> int:
    """Change settings."""
    wanted = {name: written_value(text) for name, text in options.values}
    if not wanted and not options.unset and not options.secret:
        raise CommandMisused("no change was given", fix="give NAME=VALUE, --secret or --unset")
    node = connection.node(options)
    names = [*wanted, *([options.secret] if options.secret else []), *(f"no {name}" for name in options.unset)]
    files.confirm(f"change settings of {visible(options.subject)}: {visible(', '.join(names))}?", yes=options.yes)
    if options.secret:
        wanted[options.secret] = _secret(options.secret)
    order = {"set": wanted, "unset": options.unset}
    found = node.patch(f"{_extension_path(options.subject)}/settings", order)
    _show_extensions(output, "set", options.subject, found)
    return Exit.OK


def _secret(name: str) -> str:
    found = files.secret(f"{visible(name)}: ")
    if not found:
        raise CommandRefused(f"{visible(name)} is empty, and nothing was changed", fix="use --unset to remove it")
    return found


def _show_extensions(output: CommandOutput, verb: str, subject: str, found: Mapping[str, Any]) -> None:
    if output.is_json:
        output.data(f"extensions.{verb}/1", {"subject": subject, **found})
        return
    if found["settings"]:
        rows = [(name, _shown_settings(value)) for name, value in sorted(found["settings"].items())]
        output.table(("NAME", "VALUE"), rows)
    else:
        output.say(f"no settings for {visible(subject)}")
    if found["source"] == "configuration":
        output.say("set in the configuration; change them there")


def _extension_path(subject: str) -> str:
    kind, _, name = subject.partition(":")
    return f"/extensions{below(kind, name)}"


def _shown_settings(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Kind(NamedTuple):
    """Kind of object that a node keeps under names."""

    noun: str
    path: str
    removed: str
    """Schema of the data about a removed one."""


_SERVER = _Kind("MCP server", "/mcp-servers", "mcp.remove/1")
_MODEL = _Kind("model", "/models", "models.remove/1")


def _confirmed_node(options: argparse.Namespace, question: str) -> NodeClient:
    """Return the node after a confirmation."""
    node = connection.node(options)
    files.confirm(question, yes=options.yes)
    return node


def _remove(kind: _Kind, options: argparse.Namespace, output: CommandOutput) -> int:
    node = _confirmed_node(options, f"remove {kind.noun} {visible(options.name)}?")
    return _report(kind, output, kind.removed, node.delete(f"{kind.path}{below(options.name)}"), "is removed")


def _report(kind: _Kind, output: CommandOutput, schema: str, item: Mapping[str, Any], what: str) -> int:
    if output.is_json:
        output.data(schema, item)
    else:
        output.say(f"{kind.noun} {visible(item['name'])} {what}")
    return Exit.OK


def _given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


_SERVER_HEADS = ("NAME", "STATE", "TRANSPORT", "TIMEOUT", "ENDPOINT", "SET IN")


def run_list_servers(options: argparse.Namespace, output: CommandOutput) -> int:
    """List servers."""
    found = connection.node(options).get("/mcp-servers")
    if output.is_json:
        output.data("mcp.list/1", found)
        return Exit.OK
    if found["items"]:
        output.table(_SERVER_HEADS, [_server_row(one) for one in found["items"]], {"enabled": Mood.OK})
    else:
        output.say("no MCP server is registered; democrai-sandbox mcp add registers one")
    if found["approval"] == "required":
        output.say("each endpoint also needs an approval (extensions.mcp.approval is required)")
    return Exit.OK


def run_add_server(options: argparse.Namespace, output: CommandOutput) -> int:
    """Register a server."""
    question = f"register MCP server {visible(options.name)} at {visible(options.endpoint)}?"
    node = _confirmed_node(options, question)
    order = {"name": options.name, **_server_facts(options), "enabled": not options.disabled}
    return _report(_SERVER, output, "mcp.add/1", node.post("/mcp-servers", order), "is registered")


def run_change_server(options: argparse.Namespace, output: CommandOutput) -> int:
    """Change a server."""
    changes = _server_facts(options)
    if options.enable or options.disable:
        changes["enabled"] = bool(options.enable)
    if not changes:
        raise CommandMisused("no change was given", fix="add --endpoint, --enable, --disable or another option")
    words = ", ".join(f"{name} {value}" for name, value in changes.items())
    node = _confirmed_node(options, f"change MCP server {visible(options.name)}: {visible(words)}?")
    changed = node.patch(f"/mcp-servers{below(options.name)}", changes)
    return _report(_SERVER, output, "mcp.change/1", changed, "is changed")


def run_remove_server(options: argparse.Namespace, output: CommandOutput) -> int:
    """Remove a server."""
    return _remove(_SERVER, options, output)


def _server_facts(options: argparse.Namespace) -> dict[str, Any]:
    return _given(endpoint_url=options.endpoint, transport=options.transport, timeout_ms=options.timeout_ms)


def _server_row(server: Mapping[str, Any]) -> tuple[object, ...]:
    state = "enabled" if server["enabled"] else "disabled"
    timeout = f"{server['timeout_ms'] / 1000:g} s"
    return (server["name"], state, server["transport"], timeout, server["endpoint_url"], server["source"])


_MODEL_HEADS = ("NAME", "STATE", "ADDRESS", "KEY", "AGENTS", "SET IN")
_LONGEST_KEY = 4096


def run_list_models(options: argparse.Namespace, output: CommandOutput) -> int:
    """List models; the exit status is 1 if one is missing."""
    items = connection.node(options).get("/models")["items"]
    missing = [one["name"] for one in items if not one["is_configured"]]
    if output.is_json:
        output.data("models.list/1", {"items": items})
    elif items:
        output.table(_MODEL_HEADS, [_model_row(one) for one in items], {"configured": Mood.OK, "missing": Mood.BAD})
    else:
        output.say("no models yet, and no agent uses one; democrai-sandbox models add adds one")
    if not output.is_json:
        for name in missing:
            output.say(f"to fix it: democrai-sandbox models add {visible(name)} --endpoint URL --model TEXT")
    return Exit.FAILED if missing else Exit.OK


def run_add_model(options: argparse.Namespace, output: CommandOutput) -> int:
    """Add a model."""
    node = _confirmed_node(options, f"add model {visible(options.name)} at {visible(options.endpoint)}?")
    order = {"name": options.name, **_model_facts(options), **_model_key(options)}
    return _report(_MODEL, output, "models.add/1", node.post("/models", order), "is added")


def run_change_model(options: argparse.Namespace, output: CommandOutput) -> int:
    """Change a model."""
    changes = _model_facts(options)
    names = [*changes, *(["api_key"] if options.ask_key or options.api_key_file or options.no_key else [])]
    if not names:
        raise CommandMisused("no change was given", fix="add --endpoint, --model, --ask-key or another option")
    node = _confirmed_node(options, f"change model {visible(options.name)}: {', '.join(names)}?")
    changed = node.patch(f"/models{below(options.name)}", {**changes, **_model_key(options)})
    return _report(_MODEL, output, "models.change/1", changed, "is changed")


def run_remove_model(options: argparse.Namespace, output: CommandOutput) -> int:
    """Remove a model."""
    return _remove(_MODEL, options, output)


def _model_facts(options: argparse.Namespace) -> dict[str, Any]:
    timeout = None if options.timeout_ms is None else options.timeout_ms / 1000
    chosen = {name: written_value(text) for name, text in options.option} or None
    return _given(endpoint=options.endpoint, model=options.model, timeout_seconds=timeout, options=chosen)


def _model_key(options: argparse.Namespace) -> dict[str, str]:
    """Return the key to send, or an empty dict if no key was given."""
    if options.no_key:
        return {"api_key": ""}
    if options.api_key_file is not None:
        return {"api_key": _present(_first_line(options.api_key_file))}
    return {"api_key": _present(files.secret("API key: "))} if options.ask_key else {}


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


def _model_row(model: Mapping[str, Any]) -> tuple[object, ...]:
    state = "configured" if model["is_configured"] else "missing"
    key = "yes" if model["has_key"] else "-"
    agents = ", ".join(model["agents"]) or "-"
    return (model["name"], state, model["target"] or "-", key, agents, model["source"] or "-")
