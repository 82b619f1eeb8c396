"""``democrai-sandbox mcp``: manage the registry of MCP servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandMisused

from . import asking, places
from .exits import Exit
from .node import below
from .output import Mood, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from .output import Output

_HEADS = ("NAME", "STATE", "TRANSPORT", "TIMEOUT", "ENDPOINT", "SET IN")


def run_list(options: argparse.Namespace, output: Output) -> int:
    """List servers."""
    found = places.node(options).get("/mcp-servers")
    if output.is_json:
        output.data("mcp.list/1", found)
        return Exit.OK
    if found["items"]:
        output.table(_HEADS, [_row(one) for one in found["items"]], {"enabled": Mood.OK})
    else:
        output.say("no MCP server is registered; democrai-sandbox mcp add registers one")
    if found["approval"] == "required":
        output.say("each endpoint also needs an approval (extensions.mcp.approval is required)")
    return Exit.OK


def run_add(options: argparse.Namespace, output: Output) -> int:
    """Register a server."""
    node = places.node(options)
    asking.confirm(f"register MCP server {visible(options.name)} at {visible(options.endpoint)}?", yes=options.yes)
    order = {"name": options.name, **_facts(options), "enabled": not options.disabled}
    return _told(output, "add", node.post("/mcp-servers", order), "is registered")


def run_change(options: argparse.Namespace, output: Output) -> int:
    """Change a server."""
    changes = _facts(options)
    if options.enable or options.disable:
        changes["enabled"] = bool(options.enable)
    if not changes:
        raise CommandMisused("no change was given", fix="add --endpoint, --enable, --disable or another option")
    node = places.node(options)
    asking.confirm(f"change MCP server {visible(options.name)}: {visible(_words(changes))}?", yes=options.yes)
    return _told(output, "change", node.patch(f"/mcp-servers{below(options.name)}", changes), "is changed")


def run_remove(options: argparse.Namespace, output: Output) -> int:
    """Remove a server."""
    node = places.node(options)
    asking.confirm(f"remove MCP server {visible(options.name)}?", yes=options.yes)
    return _told(output, "remove", node.delete(f"/mcp-servers{below(options.name)}"), "is removed")


def _facts(options: argparse.Namespace) -> dict[str, Any]:
    given = {"endpoint_url": options.endpoint, "transport": options.transport, "timeout_ms": options.timeout_ms}
    return {name: value for name, value in given.items() if value is not None}


def _words(changes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in changes.items())


def _told(output: Output, verb: str, server: Mapping[str, Any], what: str) -> int:
    if output.is_json:
        output.data(f"mcp.{verb}/1", server)
    else:
        output.say(f"MCP server {visible(server['name'])} {what}")
    return Exit.OK


def _row(server: Mapping[str, Any]) -> tuple[object, ...]:
    state = "enabled" if server["enabled"] else "disabled"
    timeout = f"{server['timeout_ms'] / 1000:g} s"
    return (server["name"], state, server["transport"], timeout, server["endpoint_url"], server["source"])
