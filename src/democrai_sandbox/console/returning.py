"""Safe redirect after a sign-in: only to a page of this console."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from .visitors import own_path

if TYPE_CHECKING:
    from starlette.requests import Request

_LONGEST = 2000
_STRANGE = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\]")
"""Characters that addresses of the console never contain, and that browsers drop or treat as a slash."""
_NOT_AGAIN = ("/login", "/logout", "/account/confirm", "/static/", "/api/", "/live")


def safe_next(request: Request, wanted: str) -> str:
    """Return the path to redirect to; the first page if the wanted address is not a page of the console."""
    first = own_path(request, "/")
    if not wanted or len(wanted) > _LONGEST or _STRANGE.search(wanted):
        return first
    # urlsplit finds no host in ///evil, but browsers open evil.
    path = re.split(r"[?#]", wanted, maxsplit=1)[0]
    if not path.startswith(first) or "//" in path:
        return first
    if {".", ".."} & set(unquote(path).replace("\\", "/").split("/")):
        return first
    return first if path.removeprefix(first[:-1]).startswith(_NOT_AGAIN) else wanted
