"""Drafts: fields of a form whose session ended, kept in a cookie until the user has signed in again.

A draft decides nothing. It fills the form again and is validated like the form.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import TYPE_CHECKING

from starlette.responses import RedirectResponse

from democrai_sandbox.console.auth import own_path, sandbox_of, sign_in_at
from democrai_sandbox.host.accounts.accounts import is_secure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.responses import Response

SECURE_COOKIE = "__Host-democrai-draft"
PLAIN_COOKIE = "democrai_draft"
_SECONDS = 1800
_PIECE = 3800
"""Characters per cookie; browsers accept about 4096 bytes including the name."""
_PIECES = 4
_LARGEST = 64 * 1024


def keep(request: Request, page: str, values: Mapping[str, str], *, back: str = "") -> Response:
    """Redirect a user whose session ended to the sign-in page, and keep the fields for the return.

    ``back`` is the address to return to, if it differs from the path of the page.
    """
    answer = RedirectResponse(sign_in_at(request, back or own_path(request, page)), 303)
    text = written_draft(page, values)
    pieces = [text[begin : begin + _PIECE] for begin in range(0, len(text), _PIECE)]
    for number in range(_PIECES):
        # Unused cookies are deleted, so that parts of two drafts are never mixed.
        _put(request, answer, number, pieces[number] if len(pieces) <= _PIECES and number < len(pieces) else "")
    return answer


def taken(request: Request, page: str) -> dict[str, str]:
    """Return the draft of a page, or an empty dict."""
    name = _cookie(request)
    text = "".join(request.cookies.get(_piece(name, number), "") for number in range(_PIECES))
    found, values = read_draft(text)
    return values if found == page else {}


def forget(request: Request, answer: Response) -> None:
    """Delete the cookies of a shown draft."""
    for number in range(_PIECES):
        if _piece(_cookie(request), number) in request.cookies:
            _put(request, answer, number, "")


def written_draft(page: str, values: Mapping[str, str]) -> str:
    """Return a draft as cookie text."""
    plain = json.dumps([page, dict(values)]).encode()
    return base64.urlsafe_b64encode(zlib.compress(plain, 9)).decode().rstrip("=")


def read_draft(text: str) -> tuple[str, dict[str, str]]:
    """Return the page and the values of a draft; empty for an unreadable text."""
    try:
        packed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        page, values = json.loads(zlib.decompressobj().decompress(packed, _LARGEST))
    except (ValueError, TypeError, zlib.error, RecursionError):
        return "", {}
    if not isinstance(page, str) or not isinstance(values, dict):
        return "", {}
    return page, {str(name): value for name, value in values.items() if isinstance(value, str)}


def _put(request: Request, answer: Response, number: int, text: str) -> None:
    secure = is_secure(sandbox_of(request).settings)
    answer.set_cookie(
        _piece(_cookie(request), number),
        text,
        max_age=_SECONDS if text else 0,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def _cookie(request: Request) -> str:
    return SECURE_COOKIE if is_secure(sandbox_of(request).settings) else PLAIN_COOKIE


def _piece(name: str, number: int) -> str:
    return f"{name}-{number}" if number else name
