"""Tasks: list, progress and results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, RedirectResponse  # noqa: TC002 - FastAPI reads the annotations
from starlette.requests import Request  # noqa: TC002 - the same

from democrai_sandbox.access.values import Listing, Page, RequestFilter
from democrai_sandbox.console.rendering import redirect, render
from democrai_sandbox.console.visitors import sandbox_of
from democrai_sandbox.errors import TaskUnknown
from democrai_sandbox.host.inventory import offers
from democrai_sandbox.policy import Subject, SubjectKind
from democrai_sandbox.runtime.store import TaskFilter, TaskState
from democrai_sandbox.runtime.surroundings import serving

from .admitting import ROWS, Somebody, choice_of, text_of
from .running import shown_result
from .sources import code

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from democrai_sandbox.access.values import Request as AccessRequest
    from democrai_sandbox.console.visitors import Visitor
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.runtime.store import Task

router = APIRouter()

_LOOKED_AT = 100
_AGAIN = (TaskState.FAILED, TaskState.CANCELLED, TaskState.LOST)


class Scheduled(NamedTuple):
    """A scheduled task."""

    module: str
    name: str
    every: float
    due: datetime | None


@router.get("/tasks")
def listed(request: Request, visitor: Somebody) -> HTMLResponse:
    """List tasks, newest first: all for users who may decide, their own for others."""
    sandbox = sandbox_of(request)
    state, module = choice_of(request, "state", TaskState), text_of(request, "module")
    user = text_of(request, "user") if visitor.may_decide else visitor.caller.user_id
    wanted = TaskFilter(module=module, user_id=user, states=(state,) if state else ())
    rows = sandbox.runtime.store.tasks(wanted, limit=ROWS + 1, before=text_of(request, "after"))
    listing = Listing(rows[:ROWS], rows[ROWS - 1].id if len(rows) > ROWS else "")
    return render(
        request,
        "tasks/list.html",
        visitor=visitor,
        listing=listing,
        states=[("", "any"), *((one.value, one.value) for one in TaskState)],
        modules=[("", "any"), *((name, name) for name in _modules(sandbox))],
        scheduled=tuple(_scheduled(sandbox)) if visitor.may_decide else (),
        wanted={"state": state or "", "module": module, "user": user},
    )


@router.get("/tasks/{task_id}")
def shown(request: Request, task_id: str, visitor: Somebody) -> HTMLResponse:
    """Show one task."""
    sandbox = sandbox_of(request)
    task = _own(sandbox, visitor, task_id)
    return render(
        request,
        "tasks/show.html",
        visitor=visitor,
        task=task,
        code=code,
        params=shown_result(task.params),
        result=shown_result(task.result),
        asked=_asked(sandbox, visitor, task),
        can_retry=task.state in _AGAIN and not task.origin.scheduled,
        holds={"task_started": not task.state.is_final, "task_cancelled": task.state is TaskState.CANCELLED},
    )


@router.post("/tasks/{task_id}/cancel")
async def cancel(request: Request, task_id: str, visitor: Somebody) -> RedirectResponse:
    """Cancel a task on any node."""
    sandbox = sandbox_of(request)
    _check_own(visitor, await sandbox.runtime.tasks.status(task_id))
    ended = await sandbox.runtime.tasks.cancel(task_id, f"canceled by {visitor.caller.user_id}")
    return redirect(request, f"/tasks/{task_id}", done="task_cancelled" if ended else "")


@router.post("/tasks/{task_id}/retry")
async def retry(request: Request, task_id: str, visitor: Somebody) -> RedirectResponse:
    """Run a task again for this user."""
    sandbox = sandbox_of(request)
    _check_own(visitor, await sandbox.runtime.tasks.status(task_id))
    await sandbox.runtime.tasks.retry(task_id, visitor.caller)
    return redirect(request, f"/tasks/{task_id}", done="task_started")


def _own(sandbox: Sandbox, visitor: Visitor, task_id: str) -> Task:
    task = sandbox.runtime.store.task(task_id)
    _check_own(visitor, task)
    return task


def _check_own(visitor: Visitor, task: Task) -> None:
    """Report a task of another user as missing, unless this user may see all tasks."""
    if not visitor.may_decide and task.origin.user_id != visitor.caller.user_id:
        raise TaskUnknown(f"unknown task {task.id}")


def _asked(sandbox: Sandbox, visitor: Visitor, task: Task) -> tuple[AccessRequest, ...]:
    """Return the requests of a task."""
    page, label = Page(limit=_LOOKED_AT), f"{SubjectKind.TASK}:{task.module}.{task.name}"
    with serving(visitor.caller):
        if visitor.may_decide:
            about = RequestFilter(subject=Subject(SubjectKind.MODULE, task.module))
            found = sandbox.access.administration.pending_requests(about, page).items
        else:
            found = sandbox.access.administration.own_requests(page).items
    return tuple(one for one in found if label in one.chain and _is_of(one, task))


def _is_of(asked: AccessRequest, task: Task) -> bool:
    """Return whether this run made a request, which names only the first run that did."""
    if asked.origin.task_id == task.id:
        return True
    if (asked.origin.user_id, asked.origin.session_key) != (task.origin.user_id, task.origin.session_key):
        return False
    message = "" if task.failure is None else task.failure.message
    return asked.last_seen >= task.created_at or asked.access.target in message


def _modules(sandbox: Sandbox) -> list[str]:
    """Return the names of modules that can have tasks; a broken module can have any name."""
    return sorted(module.extension.name for module in sandbox.runtime.modules.all_loaded())


def _scheduled(sandbox: Sandbox) -> Iterator[Scheduled]:
    for extension in sandbox.runtime.modules.extensions.values():
        for offer in offers(sandbox, extension):
            if offer.every is not None:
                due = sandbox.runtime.store.next_time(extension.name, offer.name)
                yield Scheduled(extension.name, offer.name, offer.every, due)
