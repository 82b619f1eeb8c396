"""Where to go after a sign-in: a page of this console and nothing else, whatever an address says."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from .visitors import own_path

if TYPE_CHECKING:
    from starlette.requests import Request

_LONGEST = 2000
_STRANGE = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\]")
"""What no address of ours has unescaped, and what browsers leave out or take for a slash."""
_NOT_AGAIN = ("/login", "/logout", "/account/confirm", "/static/", "/api/", "/live")


def safe_next(request: Request, wanted: str) -> str:
    """Return the path to go on to; the first page when what is wanted is no page of ours."""
    first = own_path(request, "/")
    if not wanted or len(wanted) > _LONGEST or _STRANGE.search(wanted):
        return first
    # Not by urlsplit, for which the host of ///evil is empty; browsers go to evil.
    path = re.split(r"[?#]", wanted, maxsplit=1)[0]
    if not path.startswith(first) or "//" in path:
        return first
    if {".", ".."} & set(unquote(path).replace("\\", "/").split("/")):
        return first
    return first if path.removeprefix(first[:-1]).startswith(_NOT_AGAIN) else wanted
