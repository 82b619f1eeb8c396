"""``democrai-sandbox audit tail``: show the last records and follow new ones."""

from __future__ import annotations

import time
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NoReturn

from democrai_sandbox.errors import SandboxError

from . import places
from .exits import Exit
from .failing import status_of
from .narrowing import given_filters
from .output import visible
from .times import when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from .node import Node
    from .output import Output

_SECONDS = 1.0
"""Seconds between two polls."""


def run_tail(options: argparse.Namespace, output: Output) -> int:
    """Show the last records, and follow new ones on request."""
    node = places.node(options)
    query = given_filters(options)
    found = list(node.items("/audit", most=options.n, **query))
    last = _shown(output, found)
    if not found and not options.follow:
        output.say("no record was found")
    if options.follow:
        _follow(options, output, node, last)
    return Exit.OK


def _follow(options: argparse.Namespace, output: Output, node: Node, last: int) -> NoReturn:
    """Follow the records after the given one. Records made while the node is unreachable are shown afterwards."""
    query, is_away = given_filters(options), False
    while True:
        time.sleep(_SECONDS)
        try:
            if is_away:
                node = places.node(options)  # its address may have changed
            found = list(_since(node, last, query))  # completely, or it is requested again
        except SandboxError as error:
            if status_of(error) is not Exit.UNREACHABLE:
                raise
            if not is_away:
                output.say(f"{visible(str(error))}; retrying until it answers")
            is_away = True
            continue
        if is_away:
            output.say(f"{visible(node.url)} answers again")
        is_away = False
        last = _shown(output, found) or last


def _since(node: Node, last: int, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    return takewhile(lambda record: record["sequence"] > last, node.items("/audit", **query))


def _shown(output: Output, newest_first: list[dict[str, Any]]) -> int:
    """Show records in order; return the number of the last."""
    for record in reversed(newest_first):
        if output.is_json:
            output.record({"schema": "democrai-sandbox/audit.tail/1", **record})
        else:
            output.line(_line(record))
    output.flush()
    return int(newest_first[0]["sequence"]) if newest_first else 0


def _line(record: Mapping[str, Any]) -> str:
    access, after = record["access"], record["after"]
    reason, person, text = after.get("reason"), after.get("person"), after.get("text")
    parts = [
        f"{record['sequence']:>6}  {when(record['at'])}  {record['action']:<20}",
        f"by {record['actor']}" if record["actor"] else "",
        f"{access['subject']} {access['operation']} {access['target']}" if access else "",
        f"user {person}" if person else "",
        f"request {record['request_id']}" if record["request_id"] else "",
        str(text) if text else "",
        f"reason: {reason}" if reason else "",
    ]
    return visible("  ".join(filter(None, parts)))
