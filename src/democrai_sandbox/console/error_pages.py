"""Page of each error code, the ``type`` of a problem document. Open without a sign-in, like the manual."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from democrai_sandbox.errors.catalogue import ENTRIES
from democrai_sandbox.errors.catalogue.pages import plain

from .problems import ERRORS
from .rendering import render

error_pages = APIRouter(tags=["errors"])


@error_pages.get(ERRORS + "{code}", response_class=HTMLResponse)
def show_error(request: Request, code: str) -> HTMLResponse:
    """Show the meaning, cause, fix and example of a code."""
    entry = ENTRIES.get(code)
    if entry is None:
        raise HTTPException(404)
    parts = (("Meaning", entry.meaning), ("Cause", entry.cause), ("Fix", entry.fix))
    shown = [(head, plain(text)) for head, text in parts]
    words = [(one.word, plain(one.meaning), plain(one.fix)) for one in entry.words]
    return render(request, "error_code.html", entry=entry, sections=shown, words=words)
