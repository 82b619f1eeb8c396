"""Small JSON Schema validator for the keywords of the published schemas; other keywords are an error."""

from __future__ import annotations

import json
import re

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool}
SILENT = {"$schema", "$id", "$defs", "title", "description"}


def accepts(schema, value, root=None):
    """Return whether ``value`` is valid against ``schema``."""
    root = schema if root is None else root
    if isinstance(schema, bool):
        return schema
    return all(_holds(keyword, schema, value, root) for keyword in schema if keyword not in SILENT)


def _holds(keyword, schema, value, root):
    wanted = schema[keyword]
    if keyword == "$ref":
        assert wanted.startswith("#/$defs/")
        return accepts(root["$defs"][wanted.removeprefix("#/$defs/")], value, root)
    if keyword in {"allOf", "anyOf"}:
        return {"allOf": all, "anyOf": any}[keyword](accepts(one, value, root) for one in wanted)
    if keyword == "if":
        return not accepts(wanted, value, root) or accepts(schema["then"], value, root)
    if keyword == "then":
        return "if" in schema
    if keyword == "enum":
        return any(_same(value, one) for one in wanted)
    if keyword == "const":
        return _same(value, wanted)
    if keyword == "type":
        return _is_type(value, wanted)
    if isinstance(value, dict) and keyword in _OBJECTS:
        return _OBJECTS[keyword](schema, value, root)
    if isinstance(value, list) and keyword in {"items", "minItems"}:
        return len(value) >= wanted if keyword == "minItems" else all(accepts(wanted, one, root) for one in value)
    if isinstance(value, str) and keyword in {"minLength", "maxLength", "pattern"}:
        return _text_holds(keyword, wanted, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and keyword in {"minimum", "maximum"}:
        return value >= wanted if keyword == "minimum" else value <= wanted
    assert keyword in _KNOWN, f"a keyword that this reader does not know: {keyword}"
    return True


_OBJECTS = {
    "required": lambda schema, value, root: all(name in value for name in schema["required"]),
    "properties": lambda schema, value, root: all(
        accepts(inner, value[name], root) for name, inner in schema["properties"].items() if name in value
    ),
    "additionalProperties": lambda schema, value, root: (
        schema["additionalProperties"] is False and set(value) <= set(schema["properties"])
    ),
    "dependentRequired": lambda schema, value, root: all(
        other in value for name, others in schema["dependentRequired"].items() if name in value for other in others
    ),
}
_KNOWN = {*_OBJECTS, "items", "minItems", "minLength", "maxLength", "pattern", "minimum", "maximum"}


def _text_holds(keyword, wanted, value):
    if keyword == "pattern":
        # In ECMAScript "$" matches only the end, in Python also before a last line break.
        return re.search(re.sub(r"\$$", r"\\Z", wanted), value) is not None
    return len(value) >= wanted if keyword == "minLength" else len(value) <= wanted


def _is_type(value, name):
    if name == "integer":
        return (type(value) is int) or (type(value) is float and value.is_integer())
    return type(value) is TYPES[name]


def _same(one, other):
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
