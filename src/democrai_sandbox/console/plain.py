"""Values as JSON that every reader takes: bytes, numbers that are none, and halves of characters included."""

from __future__ import annotations

import json
from base64 import b64encode
from math import isfinite
from typing import Any

from starlette.responses import JSONResponse


class PlainResponse(JSONResponse):
    """JSON in ASCII, never to be kept by a cache: answers are about what holds now, for whoever asked."""

    def __init__(self, content: Any = None, status_code: int = 200, headers: Any = None, **other: Any) -> None:
        """Take what JSON can hold."""
        super().__init__(content, status_code, {"Cache-Control": "no-store", **(headers or {})}, **other)

    def render(self, content: Any) -> bytes:
        """Return the text."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def speakable(text: str) -> str:
    """Return a text that UTF-8 can hold: halves of surrogate pairs, as in names of files, are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


def jsonable(value: Any) -> Any:
    """Return plain data as JSON can hold it: bytes as ``{"base64": ...}``, numbers that are none as texts.

    Keys become texts. What an extension or the audit has nested is not deeper than the guard lets through.
    """
    if isinstance(value, dict):
        return {_key(name): jsonable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if isinstance(value, str):
        return speakable(value)
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode("ascii")}
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def _key(name: Any) -> str:
    if isinstance(name, str):
        return speakable(name)
    return json.dumps(name) if name is None or isinstance(name, bool) else str(name)


def weight(value: Any) -> int:
    """Return about how long plain data is as JSON, without making it: what an extension returns may be anything."""
    if isinstance(value, dict):
        return sum(weight(name) + weight(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(map(weight, value))
    return len(value) if isinstance(value, str | bytes) else 1
