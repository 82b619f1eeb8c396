"""Extensions: what there is, what each declares and offers, and what is wrong with it."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse  # noqa: TC002 - FastAPI reads the annotations
from starlette.requests import Request  # noqa: TC002 - the same

from democrai_sandbox.console.rendering import redirect, render
from democrai_sandbox.console.visitors import sandbox_of
from democrai_sandbox.errors import InstallFailed
from democrai_sandbox.host.inventory import (
    ExtensionState,
    detail,
    find,
    installed_runtime,
    line_of,
    overview,
)
from democrai_sandbox.policy import InvalidInputError, SandboxError

from .admitting import Administrator, Somebody, why_not
from .sources import code, code_line

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.datastructures import State

    from democrai_sandbox.host.inventory import Detail, Overview

router = APIRouter()

_log = logging.getLogger(__name__)
_HEADINGS = (("module", "Modules"), ("engine", "Engines"), ("extractor", "Extractors"))
_LONGEST_LINE = 2000


@router.get("/extensions")
def listed(request: Request, visitor: Somebody) -> HTMLResponse:
    """List all extensions by kind; somebody who may not decide sees the modules that can be run."""
    found = overview(sandbox_of(request))
    if not visitor.may_decide:
        found = tuple(one for one in found if one.kind.value == "module" and one.state is ExtensionState.OK)
    kinds = [(title, [one for one in found if one.kind.value == kind]) for kind, title in _HEADINGS]
    return render(
        request, "extensions/list.html", visitor=visitor, kinds=[pair for pair in kinds if pair[1]], warnings=_warnings
    )


@router.get("/extensions/{kind}/{name}")
def shown(request: Request, kind: str, name: str, visitor: Somebody) -> HTMLResponse:
    """Show one extension; what it declares and prints is for those who may decide."""
    found = detail(sandbox_of(request), kind, name)
    return render(
        request,
        "extensions/show.html",
        visitor=visitor,
        found=found,
        about=found.overview,
        marks=_marks(found),
        line_of=line_of,
        longest=_LONGEST_LINE,
        code=code,
        code_line=code_line,
        why_not=why_not(visitor),
        holds={"install_started": found.overview.state is ExtensionState.INSTALLING},
    )


@router.post("/extensions/{kind}/{name}/install")
async def install(
    request: Request, kind: str, name: str, visitor: Administrator, *, again: bool = False
) -> RedirectResponse:
    """Begin to install an engine or extractor, in the background; the page of the extension shows how far it is."""
    sandbox = sandbox_of(request)
    extension = find(sandbox, kind, name)
    runtime = installed_runtime(sandbox, extension.kind)
    if runtime is None:
        raise InvalidInputError.of("modules are not installed: they run as they are", pointer="/kind")
    extension.require_sound()
    _keep(request.app.state, _installed(runtime.install(name, caller=visitor.caller, again=again), name))
    return redirect(request, f"/extensions/{kind}/{quote(name)}", done="install_started")


async def _installed(work: Coroutine[Any, Any, object], name: str) -> None:
    """Wait for an installation; what came of it is in its status, whoever started it."""
    try:
        await work
    except InstallFailed as error:
        _log.warning("the installation of %s failed: %s", name, error)
    except SandboxError as error:
        _log.warning("the installation of %s was not begun: %s", name, error)


def _keep(state: State, work: Coroutine[Any, Any, None]) -> None:
    """Have something done while nobody waits for it: a task that nothing refers to may vanish."""
    tasks: set[asyncio.Task[None]] = getattr(state, "installing", None) or set()
    state.installing = tasks
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)

    def ended(done: asyncio.Task[None]) -> None:
        tasks.discard(done)
        with suppress(asyncio.CancelledError):
            done.result()

    task.add_done_callback(ended)


def _warnings(one: Overview) -> int:
    return sum(finding.severity == "warning" for finding in one.findings)


def _marks(found: Detail) -> dict[int, str]:
    """Return how the lines of a manifest are marked: ``wrong`` for a problem, ``found`` for a finding."""
    marks = {finding.line: "found" for finding in found.overview.findings if finding.line}
    return marks | {line_of(problem): "wrong" for problem in found.overview.problems if line_of(problem)}
