"""Functions of modules, run as the signed-in user, and tasks with their progress and results."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

from fastapi import APIRouter, Form, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from starlette.concurrency import run_in_threadpool

from democrai_sandbox.access.values import PageRequest, RequestFilter, RequestState, ResultPage
from democrai_sandbox.console.auth import sandbox_of
from democrai_sandbox.console.problems import told
from democrai_sandbox.console.render import redirect, render
from democrai_sandbox.console.untrusted_text import code
from democrai_sandbox.errors import ExtensionFailed, ExtensionUnknown, SandboxDenied, TaskUnknown
from democrai_sandbox.host.extension_overview import SURFACES, find_extension, runnable_functions
from democrai_sandbox.policy import InvalidInputError, SandboxError, Subject, SubjectKind
from democrai_sandbox.runtime.access_environment import serving
from democrai_sandbox.runtime.store import TaskFilter, TaskState

from .parameters import ROWS, SignedInUser, choice_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from democrai_sandbox.access.values import StoredRequest as AccessRequest
    from democrai_sandbox.console.auth import Visitor
    from democrai_sandbox.host.extension_overview import RunnableFunction
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.runtime.store import Task

router = APIRouter()

LONGEST_PARAMS = 60_000
LONGEST_SHOWN = 200_000
_TASK = "task"
_LATEST_OWN_REQUESTS = 50


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """Result of a run."""

    milliseconds: float
    result: str = ""
    left_out: int = 0
    """Number of omitted characters of the result."""
    error: SandboxError | None = None
    waiting: tuple[AccessRequest, ...] = ()
    """Pending requests of this user and module."""

    @property
    def is_denial(self) -> bool:
        """Whether the module was denied, not broken."""
        return isinstance(self.error, SandboxDenied)

    @property
    def hint(self) -> str:
        """The hint of a denial, or the traceback."""
        if isinstance(self.error, SandboxDenied):
            return self.error.hint
        return self.error.traceback if isinstance(self.error, ExtensionFailed) else ""

    @property
    def request_id(self) -> str:
        """The pending request of the denial, or an empty text."""
        return getattr(self.error, "request_id", None) or ""


@router.get("/extensions/module/{name}/run/{surface}/{operation}")
def show_form(request: Request, name: str, surface: str, operation: str, visitor: SignedInUser) -> Response:
    """Show the form of a function of a module."""
    offer = _offer(sandbox_of(request), name, surface, operation)
    return _form_page(request, visitor, name, offer)


@router.post("/extensions/module/{name}/run/{surface}/{operation}")
async def run_function(
    request: Request,
    visitor: SignedInUser,
    *,
    name: str,
    surface: str,
    operation: str,
    params: Annotated[str, Form()] = "",
) -> Response:
    """Run the function and show the result on the same page; a task continues in the background on a separate page."""
    sandbox = sandbox_of(request)
    offer = _offer(sandbox, name, surface, operation)
    try:
        given = read_params(params)
        if surface == _TASK:
            task_id = await sandbox.runtime.tasks.submit(name, operation, given, visitor.caller)
            return redirect(request, f"/tasks/{task_id}", done="task_started")
    except InvalidInputError as error:
        wrong = "; ".join(problem.message for problem in error.problems)
        return _form_page(request, visitor, name, offer, params=params, wrong=wrong, status=422)
    outcome = await _called(sandbox, visitor, name, offer, given)
    status = 200 if outcome.error is None else told(outcome.error).status
    return _form_page(request, visitor, name, offer, params=params, outcome=outcome, status=status)


def read_params(text: str) -> dict[str, Any]:
    """Return the typed parameters, or refuse them with the place of the error."""
    if len(text) > LONGEST_PARAMS:
        raise _wrong(f"longer than {LONGEST_PARAMS:,} characters")
    try:
        value = json.loads(text.strip() or "{}", parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise _wrong(f"not JSON: {error.msg}, in line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _wrong("nested too deep") from None
    if not isinstance(value, dict):
        raise _wrong('expected an object such as {"month": "may"}')
    return value


def shown_result(value: object) -> str:
    """Return plain data as readable JSON; bytes as base64."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=_beyond_json)


async def _called(
    sandbox: Sandbox, visitor: Visitor, name: str, offer: RunnableFunction, params: dict[str, Any]
) -> FunctionResult:
    begun = perf_counter()
    error, text = None, ""
    try:
        result = await sandbox.runtime.modules.call(name, offer.kind, offer.name, params, visitor.caller)
        text = await run_in_threadpool(shown_result, result)  # not on the event loop: it may be large
    except SandboxError as caught:
        error = caught
    taken = (perf_counter() - begun) * 1000
    waiting = await run_in_threadpool(_waiting, sandbox, visitor, name)
    return FunctionResult(taken, text[:LONGEST_SHOWN], max(0, len(text) - LONGEST_SHOWN), error, waiting)


def _waiting(sandbox: Sandbox, visitor: Visitor, module: str) -> tuple[AccessRequest, ...]:
    """Return the pending requests of a module and user: a module can file requests without failing."""
    with serving(visitor.caller):
        own = sandbox.access.administration.own_requests(PageRequest(limit=_LATEST_OWN_REQUESTS)).items
    label, session = f"module:{module}", visitor.caller.session_key
    return tuple(
        one
        for one in own
        if one.state is RequestState.PENDING
        and one.origin.session_key == session
        and (str(one.access.subject) == label or label in one.chain)
    )


def _offer(sandbox: Sandbox, name: str, surface: str, operation: str) -> RunnableFunction:
    """Return the function to run; an unknown one is an error that lists the known ones."""
    extension = find_extension(sandbox, "module", name)
    extension.require_sound()
    found = [one for one in runnable_functions(sandbox, extension) if one.kind in SURFACES]
    for one in found:
        if (one.kind, one.name) == (surface, operation):
            return one
    there = ", ".join(f"{one.kind} {one.name}" for one in found) or "nothing"
    raise ExtensionUnknown(f"module {name} has no {surface} {operation!r}; it offers: {there}")


def _form_page(
    request: Request,
    visitor: Visitor,
    name: str,
    offer: RunnableFunction,
    *,
    params: str | None = None,
    wrong: str = "",
    outcome: FunctionResult | None = None,
    status: int = 200,
) -> Response:
    if params is None:
        params = json.dumps(dict.fromkeys(offer.parameters, ""), indent=2) if offer.parameters else "{}"
    context: dict[str, Any] = {
        "name": name,
        "offer": offer,
        "params": params,
        "wrong": wrong,
        "outcome": outcome,
        "code": code,
    }
    return render(request, "running/run.html", visitor=visitor, status=status, longest=LONGEST_PARAMS, **context)


def _beyond_json(value: object) -> object:
    if isinstance(value, bytes | bytearray):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, set | frozenset | tuple):
        return list(value)
    return repr(value)


def _no_number(text: str) -> NoReturn:
    raise _wrong(f"not JSON: {text} is not a number")


def _wrong(message: str) -> InvalidInputError:
    return InvalidInputError.of(message, pointer="/params")


_LATEST_SUBJECT_REQUESTS = 100
_AGAIN = (TaskState.FAILED, TaskState.CANCELLED, TaskState.LOST)


class ScheduledTask(NamedTuple):
    """A scheduled task."""

    module: str
    name: str
    every: float
    due: datetime | None


@router.get("/tasks")
def list_tasks(request: Request, visitor: SignedInUser) -> HTMLResponse:
    """List tasks, newest first: all for users who may decide, their own for others."""
    sandbox = sandbox_of(request)
    state, module = choice_of(request, "state", TaskState), text_of(request, "module")
    user = text_of(request, "user") if visitor.may_decide else visitor.caller.user_id
    wanted = TaskFilter(module=module, user_id=user, states=(state,) if state else ())
    rows = sandbox.runtime.store.tasks(wanted, limit=ROWS + 1, before=text_of(request, "after"))
    listing = ResultPage(rows[:ROWS], rows[ROWS - 1].id if len(rows) > ROWS else "")
    modules = sorted(module.extension.name for module in sandbox.runtime.modules.all_loaded())
    return render(
        request,
        "tasks/list.html",
        visitor=visitor,
        listing=listing,
        states=[("", "any"), *((one.value, one.value) for one in TaskState)],
        # Only modules that can have tasks: a broken module can have any name.
        modules=[("", "any"), *((name, name) for name in modules)],
        scheduled=tuple(_scheduled(sandbox)) if visitor.may_decide else (),
        wanted={"state": state or "", "module": module, "user": user},
    )


@router.get("/tasks/{task_id}")
def show_task(request: Request, task_id: str, visitor: SignedInUser) -> HTMLResponse:
    """Show one task."""
    sandbox = sandbox_of(request)
    task = sandbox.runtime.store.task(task_id)
    _check_own(visitor, task)
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
async def cancel_task(request: Request, task_id: str, visitor: SignedInUser) -> RedirectResponse:
    """Cancel a task on any node."""
    sandbox = sandbox_of(request)
    _check_own(visitor, await sandbox.runtime.tasks.status(task_id))
    ended = await sandbox.runtime.tasks.cancel(task_id, f"canceled by {visitor.caller.user_id}")
    return redirect(request, f"/tasks/{task_id}", done="task_cancelled" if ended else "")


@router.post("/tasks/{task_id}/retry")
async def retry_task(request: Request, task_id: str, visitor: SignedInUser) -> RedirectResponse:
    """Run a task again for this user."""
    sandbox = sandbox_of(request)
    _check_own(visitor, await sandbox.runtime.tasks.status(task_id))
    await sandbox.runtime.tasks.retry(task_id, visitor.caller)
    return redirect(request, f"/tasks/{task_id}", done="task_started")


def _check_own(visitor: Visitor, task: Task) -> None:
    """Report a task of another user as missing, unless this user may see all tasks."""
    if not visitor.may_decide and task.origin.user_id != visitor.caller.user_id:
        raise TaskUnknown(f"unknown task {task.id}")


def _asked(sandbox: Sandbox, visitor: Visitor, task: Task) -> tuple[AccessRequest, ...]:
    """Return the requests of a task."""
    page, label = PageRequest(limit=_LATEST_SUBJECT_REQUESTS), f"{SubjectKind.TASK}:{task.module}.{task.name}"
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


def _scheduled(sandbox: Sandbox) -> Iterator[ScheduledTask]:
    for extension in sandbox.runtime.modules.extensions.values():
        for offer in runnable_functions(sandbox, extension):
            if offer.every is not None:
                due = sandbox.runtime.store.next_time(extension.name, offer.name)
                yield ScheduledTask(extension.name, offer.name, offer.every, due)
