"""Subjects: declarations, decisions and observed accesses; and shadow runs of candidate manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse

from democrai_sandbox.console.auth import sandbox_of
from democrai_sandbox.console.render import redirect, render
from democrai_sandbox.console.untrusted_text import code
from democrai_sandbox.errors import ExtensionBroken, ExtensionUnknown
from democrai_sandbox.host import shadow_runs
from democrai_sandbox.host.subject_overview import count_by_kind, known_subjects, subject_profile
from democrai_sandbox.policy import InvalidInputError, Subject, SubjectKind
from democrai_sandbox.runtime.access_environment import serving
from democrai_sandbox.runtime.store import EntryExists

from .parameters import Administrator, choice_of, parsed_subject, text_of

if TYPE_CHECKING:
    from democrai_sandbox.console.auth import Visitor
    from democrai_sandbox.host.subject_overview import SubjectSummary

router = APIRouter()

MOST_LISTED = 500


@router.get("/subjects")
def list_subjects(request: Request, visitor: Administrator) -> HTMLResponse:
    """List all known subjects."""
    kind, text = choice_of(request, "kind", SubjectKind), text_of(request, "text")
    everybody = known_subjects(sandbox_of(request))
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
def show_subject(request: Request, kind: str, name: str, visitor: Administrator) -> HTMLResponse:
    """Show declarations, decisions and observations of one subject side by side."""
    sandbox = sandbox_of(request)
    subject = Subject(kind, name)  # type: ignore[arg-type] # text is taken and checked
    with serving(visitor.caller):
        found = subject_profile(sandbox, subject)
    return render(
        request,
        "subjects/show.html",
        visitor=visitor,
        subject=subject,
        portrait=found,
        unused_days=sandbox.settings.console.unused_days,
        is_extension=kind in {"module", "engine", "extractor"} and found.manifest is not None,
    )


def _tabs(listed: list[SubjectSummary]) -> list[tuple[str, str, int]]:
    """Return value, label and number of each existing kind, after one entry for all."""
    numbers = count_by_kind(listed)
    return [("", "All", len(listed)), *((kind.value, f"{kind.value}s", number) for kind, number in numbers.items())]


_MOST_SHOWN = 20


@router.get("/shadows")
def list_shadows(request: Request, visitor: Administrator) -> Response:
    """List shadow runs, with a form to start one."""
    return _shadow_list(request, visitor, subject=text_of(request, "subject"))


@router.post("/shadows")
def start_shadow(
    request: Request,
    visitor: Administrator,
    subject: Annotated[str, Form()] = "",
    manifest: Annotated[str, Form()] = "",
) -> Response:
    """Start a shadow run; an invalid candidate is shown again with its problems."""
    try:
        named = parsed_subject(subject.strip())
        with serving(visitor.caller):
            run = shadow_runs.start_shadow(sandbox_of(request), named, manifest, visitor.caller)
    except InvalidInputError as error:
        return _shadow_list(
            request, visitor, subject=subject, manifest=manifest, wrong=_shadow_problems(error), status=422
        )
    except (ExtensionUnknown, ExtensionBroken, EntryExists) as error:
        status = 409 if isinstance(error, EntryExists) else 422
        return _shadow_list(
            request, visitor, subject=subject, manifest=manifest, wrong={"subject": [str(error)]}, status=status
        )
    return redirect(request, f"/shadows/{run.id}", done="shadow_started")


@router.get("/shadows/{shadow_id}")
def show_shadow(request: Request, visitor: Administrator, shadow_id: str) -> Response:
    """Show the accesses that a candidate would newly deny or allow, and the differences of the manifests."""
    found = shadow_runs.show_shadow(sandbox_of(request), shadow_id, visitor.caller)
    running = found.run.is_running
    holds = {"shadow_started": running, "shadow_ended": not running}
    return render(request, "shadows/show.html", visitor=visitor, found=found, run=found.run, code=code, holds=holds)


@router.post("/shadows/{shadow_id}/end")
def end_shadow(request: Request, visitor: Administrator, shadow_id: str) -> Response:
    """Stop a shadow run; its findings are kept."""
    with serving(visitor.caller):
        shadow_runs.end_shadow(sandbox_of(request), shadow_id, visitor.caller)
    return redirect(request, f"/shadows/{shadow_id}", done="shadow_ended")


def _shadow_list(
    request: Request,
    visitor: Visitor,
    *,
    subject: str = "",
    manifest: str = "",
    wrong: dict[str, list[str]] | None = None,
    status: int = 200,
) -> Response:
    sandbox = sandbox_of(request)
    context: dict[str, Any] = {
        "runs": shadow_runs.list_shadows(sandbox, visitor.caller),
        "subjects": [str(one.subject) for one in sandbox.runtime.extensions if not one.is_broken],
        "subject": subject,
        "manifest": manifest,
        "wrong": wrong or {},
    }
    return render(request, "shadows/list.html", visitor=visitor, status=status, **context)


def _shadow_problems(error: InvalidInputError) -> dict[str, list[str]]:
    """Return the problems by field, all of them for the manifest."""
    wrong: dict[str, list[str]] = {}
    for problem in error.problems:
        of_subject = problem.pointer.startswith("/subject")
        where = "" if of_subject else problem.pointer.removeprefix("/manifest")
        hint = f" Did you mean {problem.suggestion}?" if problem.suggestion else ""
        listed = wrong.setdefault("subject" if of_subject else "manifest", [])
        if len(listed) < _MOST_SHOWN:
            listed.append(f"{where}{': ' if where else ''}{problem.message}{hint}")
    return wrong
