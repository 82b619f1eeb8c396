"""Subjects: declarations, decisions and observed accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter
from fastapi.responses import HTMLResponse  # noqa: TC002 - FastAPI reads the annotations
from starlette.requests import Request  # noqa: TC002 - the same

from democrai_sandbox.console.rendering import render
from democrai_sandbox.console.visitors import sandbox_of
from democrai_sandbox.host.surveying import counted, portrait, survey
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.surroundings import serving

from .admitting import Administrator, choice_of, text_of

if TYPE_CHECKING:
    from democrai_sandbox.host.surveying import Surveyed

router = APIRouter()

MOST_LISTED = 500


@router.get("/subjects")
def listed(request: Request, visitor: Administrator) -> HTMLResponse:
    """List all known subjects."""
    kind, text = choice_of(request, "kind", SubjectKind), text_of(request, "text")
    everybody = survey(sandbox_of(request))
    named = [one for one in everybody if text.casefold() in str(one.subject).casefold()]
    found = [one for one in named if kind in (None, one.subject.kind)]
    return render(
        request,
        "subjects/list.html",
        visitor=visitor,
        subjects=found[:MOST_LISTED],
        left_out=max(0, len(found) - MOST_LISTED),
        tabs=_tabs(named),
        kind=kind,
        text=text,
    )


@router.get("/subjects/{kind}/{name:path}")
def shown(request: Request, kind: str, name: str, visitor: Administrator) -> HTMLResponse:
    """Show declarations, decisions and observations of one subject side by side."""
    sandbox = sandbox_of(request)
    subject = Subject(kind, name)  # type: ignore[arg-type] # text is taken and checked
    with serving(visitor.caller):
        found = portrait(sandbox, subject)
    return render(
        request,
        "subjects/show.html",
        visitor=visitor,
        subject=subject,
        portrait=found,
        unused_days=sandbox.settings.console.unused_days,
        is_extension=kind in {"module", "engine", "extractor"} and found.manifest is not None,
    )


def _tabs(listed: list[Surveyed]) -> list[tuple[str, str, int]]:
    """Return value, label and number of each existing kind, after one entry for all."""
    numbers = counted(listed)
    return [("", "All", len(listed)), *((kind.value, f"{kind.value}s", number) for kind, number in numbers.items())]
