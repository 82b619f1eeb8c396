"""A page for each error code: the types of problems lead there. Open to anybody, for it is the same as the manual."""

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
    """Show what a code means, where it comes from, and what to do."""
    entry = ENTRIES.get(code)
    if entry is None:
        raise HTTPException(404)
    parts = (("Meaning", entry.meaning), ("Cause", entry.cause), ("Fix", entry.fix))
    shown = [(head, plain(text)) for head, text in parts if text]
    words = [(one.word, plain(one.meaning), plain(one.fix)) for one in entry.words]
    return render(request, "error_code.html", entry=entry, sections=shown, words=words)
