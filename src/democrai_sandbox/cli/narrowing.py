"""Lists of the API, up to a limit."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from .node import Node
    from .output import Output


def given_filters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the filters as parameters of the API."""
    return {name: getattr(options, name) for name in options.filters}


def listed(node: Node, path: str, options: argparse.Namespace, **query: Any) -> tuple[list[dict[str, Any]], bool]:
    """Return the items of a list up to the limit, and whether more exist."""
    found = list(islice(node.items(path, most=options.limit + 1, **given_filters(options), **query), options.limit + 1))
    return found[: options.limit], len(found) > options.limit


def show_list(
    output: Output,
    schema: str,
    found: tuple[list[dict[str, Any]], bool],
    show: Callable[[list[dict[str, Any]]], None],
    empty: str,
) -> None:
    """Show the items, and a note if more exist."""
    items, has_more = found
    if output.is_json:
        output.data(schema, {"items": items, "has_more": has_more})
        return
    if items:
        show(items)
    else:
        output.say(empty)
    if has_more:
        output.say(f"more than {len(items)} exist: use --limit or filters")
