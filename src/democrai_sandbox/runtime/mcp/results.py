"""Results of a server as plain data: parsed, checked and encoded as JSON inside the guard, decoded outside.

Only text crosses, so no object that was made from a server's data reaches the host.
"""

from __future__ import annotations

import json
from typing import Any

from democrai_sandbox.errors.services import McpProtocolError
from democrai_sandbox.policy.text import invisible_character

LONGEST_TOOL_NAME = 128
_TOOL_KEYS = {
    "name": "name",
    "title": "title",
    "description": "description",
    "inputSchema": "input_schema",
    "outputSchema": "output_schema",
    "annotations": "annotations",
}


def tool_of(server: str, wire: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with our field names. Icons and metadata are omitted, because their addresses are never used."""
    check_tool_name(server, wire["name"])
    return {ours: wire[theirs] for theirs, ours in _TOOL_KEYS.items() if wire.get(theirs) is not None}


def check_tool_name(server: str, name: str) -> None:
    """Refuse a name that could be confused with another one, in a log or by a model."""
    if not 0 < len(name) <= LONGEST_TOOL_NAME or invisible_character(name):
        raise McpProtocolError(server, f"a tool has the invalid name {name[:LONGEST_TOOL_NAME]!r}")


def result_of(wire: dict[str, Any], structured: Any) -> dict[str, Any]:
    """Return the result of a call: ``content``, a list of blocks as in MCP, and ``structured`` data if any.

    The structured part is used as parsed, because the library would encode NaN as null.
    """
    found: dict[str, Any] = {"is_error": wire.get("isError") is True, "content": wire.get("content", [])}
    if structured is not None:
        found["structured"] = structured
    return found


def text_of(content: list[Any]) -> str:
    """Return the texts of a content, for an error."""
    texts = [block["text"] for block in content if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return " ".join(texts) or "the server gave no reason"


def told(server: str, value: Any, *, depth: int) -> str:
    """Return plain data as JSON text; refuse values that are not JSON, and values that are nested too deeply."""
    if _depth(value) > depth:
        raise McpProtocolError(server, f"the answer is nested deeper than {depth} levels")
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise McpProtocolError(server, f"the answer is not valid JSON: {error}") from None


def _depth(value: Any) -> int:
    """Return the nesting depth of lists and objects; iterative, because deep values exceed the recursion limit."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth
