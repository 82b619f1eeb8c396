"""What a server said, as plain data: read, checked and told as JSON text inside the guard, taken from the text outside.

A text is all that crosses: whatever a server sends, no object that was made of it reaches the host.
"""

from __future__ import annotations

import json
from typing import Any

from democrai_sandbox.policy.text import invisible_character

from .errors import McpProtocolError

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
    """Return a tool by our names. Icons and metadata are left out: nobody here follows their addresses."""
    check_tool_name(server, wire["name"])
    return {ours: wire[theirs] for theirs, ours in _TOOL_KEYS.items() if wire.get(theirs) is not None}


def check_tool_name(server: str, name: str) -> None:
    """Refuse a name that could not be told from another one, in a log or by a model."""
    if not 0 < len(name) <= LONGEST_TOOL_NAME or invisible_character(name):
        raise McpProtocolError(server, f"a tool has the name {name[:LONGEST_TOOL_NAME]!r}")


def result_of(wire: dict[str, Any], structured: Any) -> dict[str, Any]:
    """Return what a call came to: ``content``, a list of blocks as MCP has them, and ``structured`` if there is any.

    The structured part is taken as it was parsed: the library would write numbers that are none as nothing.
    """
    found: dict[str, Any] = {"is_error": wire.get("isError") is True, "content": wire.get("content", [])}
    if structured is not None:
        found["structured"] = structured
    return found


def text_of(content: list[Any]) -> str:
    """Return the texts of a content, for an error."""
    texts = [block["text"] for block in content if isinstance(block, dict) and isinstance(block.get("text"), str)]
    return " ".join(texts) or "it gives no reason"


def told(server: str, value: Any, *, depth: int) -> str:
    """Return plain data as JSON text; refuse what JSON does not know, and what is nested too deep for its readers."""
    if _depth(value) > depth:
        raise McpProtocolError(server, f"the answer is nested deeper than {depth} levels")
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise McpProtocolError(server, f"the answer is no JSON: {error}") from None


def _depth(value: Any) -> int:
    """Return how deep lists and objects are nested; level by level, because a deep one would end the recursion."""
    depth, level = 0, [value]
    while level := [item for item in level if isinstance(item, dict | list)]:
        depth += 1
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
    return depth
