"""Shadow runs: trials of candidate manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Form
from starlette.requests import Request  # noqa: TC002 - FastAPI reads the annotations
from starlette.responses import Response  # noqa: TC002 - the same

from democrai_sandbox.console.rendering import redirect, render
from democrai_sandbox.console.visitors import sandbox_of
from democrai_sandbox.errors import ExtensionBroken, ExtensionUnknown
from democrai_sandbox.host import shadowing
from democrai_sandbox.policy import InvalidInputError, Subject
from democrai_sandbox.runtime.store import EntryExists
from democrai_sandbox.runtime.surroundings import serving

from .admitting import Administrator, text_of
from .sources import code

if TYPE_CHECKING:
    from democrai_sandbox.console.visitors import Visitor

router = APIRouter()

_MOST_SHOWN = 20


@router.get("/shadows")
def listed(request: Request, visitor: Administrator) -> Response:
    """List shadow runs, with a form to start one."""
    return _list(request, visitor, subject=text_of(request, "subject"))


@router.post("/shadows")
def start(
    request: Request,
    visitor: Administrator,
    subject: Annotated[str, Form()] = "",
    manifest: Annotated[str, Form()] = "",
) -> Response:
    """Start a shadow run; an invalid candidate is shown again with its problems."""
    try:
        named = _subject(subject.strip())
        with serving(visitor.caller):
            run = shadowing.start_shadow(sandbox_of(request), named, manifest, visitor.caller)
    except InvalidInputError as error:
        return _list(request, visitor, subject=subject, manifest=manifest, wrong=_by_field(error), status=422)
    except (ExtensionUnknown, ExtensionBroken) as error:
        return _list(request, visitor, subject=subject, manifest=manifest, wrong={"subject": [str(error)]}, status=422)
    except EntryExists as error:
        return _list(request, visitor, subject=subject, manifest=manifest, wrong={"subject": [str(error)]}, status=409)
    return redirect(request, f"/shadows/{run.id}", done="shadow_started")


@router.get("/shadows/{shadow_id}")
def show(request: Request, visitor: Administrator, shadow_id: str) -> Response:
    """Show the accesses that a candidate would newly deny or allow, and the differences of the manifests."""
    found = shadowing.show_shadow(sandbox_of(request), shadow_id, visitor.caller)
    running = found.run.is_running
    holds = {"shadow_started": running, "shadow_ended": not running}
    return render(request, "shadows/show.html", visitor=visitor, found=found, run=found.run, code=code, holds=holds)


@router.post("/shadows/{shadow_id}/end")
def end(request: Request, visitor: Administrator, shadow_id: str) -> Response:
    """Stop a shadow run; its findings are kept."""
    with serving(visitor.caller):
        shadowing.end_shadow(sandbox_of(request), shadow_id, visitor.caller)
    return redirect(request, f"/shadows/{shadow_id}", done="shadow_ended")


def _list(
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
        "runs": shadowing.list_shadows(sandbox, visitor.caller),
        "subjects": [str(one.subject) for one in sandbox.runtime.extensions if not one.is_broken],
        "subject": subject,
        "manifest": manifest,
        "wrong": wrong or {},
    }
    return render(request, "shadows/list.html", visitor=visitor, status=status, **context)


def _subject(text: str) -> Subject:
    try:
        return Subject.parse(text)
    except InvalidInputError as error:
        raise InvalidInputError(problem.moved("/subject") for problem in error.problems) from None


def _by_field(error: InvalidInputError) -> dict[str, list[str]]:
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
