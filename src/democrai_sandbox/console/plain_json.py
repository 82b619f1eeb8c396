"""JSON of plain data, including bytes, numbers that are not finite, and lone surrogates."""

from __future__ import annotations

import json
from base64 import b64encode
from math import isfinite
from typing import Any

from starlette.responses import JSONResponse


class PlainResponse(JSONResponse):
    """JSON response in ASCII that is never cached, because it is valid only now and for this caller."""

    def __init__(self, content: Any = None, status_code: int = 200, headers: Any = None, **other: Any) -> None:
        """Take plain data."""
        super().__init__(content, status_code, {"Cache-Control": "no-store", **(headers or {})}, **other)

    def render(self, content: Any) -> bytes:
        """Return the encoded text."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def speakable(text: str) -> str:
    """Return a text that UTF-8 can encode: lone surrogates, as in file names, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def jsonable(value: Any) -> Any:
    """Return plain data for JSON: bytes as ``{"base64": ...}``, numbers that are not finite as texts.

    Keys become texts. The depth is bounded by the guard.
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
    """Return the approximate length of the JSON of plain data, without creating it."""
    if isinstance(value, dict):
        return sum(weight(name) + weight(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(map(weight, value))
    return len(value) if isinstance(value, str | bytes) else 1
