"""Run functions of a module as the signed-in user, and show the result or the error."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from fastapi import APIRouter, Form
from fastapi.responses import Response  # noqa: TC002 - FastAPI reads the annotations
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request  # noqa: TC002 - the same

from democrai_sandbox.access.values import Page, RequestState
from democrai_sandbox.console.problems import told
from democrai_sandbox.console.rendering import redirect, render
from democrai_sandbox.console.visitors import sandbox_of
from democrai_sandbox.errors import ExtensionFailed, ExtensionUnknown, SandboxDenied
from democrai_sandbox.host.inventory import SURFACES, find, offers
from democrai_sandbox.policy import InvalidInputError, SandboxError
from democrai_sandbox.runtime.surroundings import serving

from .admitting import Somebody  # noqa: TC001 - the same
from .sources import code

if TYPE_CHECKING:
    from democrai_sandbox.access.values import Request as AccessRequest
    from democrai_sandbox.console.visitors import Visitor
    from democrai_sandbox.host.inventory import Offered
    from democrai_sandbox.host.sandbox import Sandbox

router = APIRouter()

LONGEST_PARAMS = 60_000
LONGEST_SHOWN = 200_000
_TASK = "task"
_LOOKED_AT = 50


@dataclass(frozen=True, slots=True)
class Outcome:
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
def form(request: Request, name: str, surface: str, operation: str, visitor: Somebody) -> Response:
    """Show the form of a function of a module."""
    offer = _offer(sandbox_of(request), name, surface, operation)
    return _page(request, visitor, name, offer)


@router.post("/extensions/module/{name}/run/{surface}/{operation}")
async def run(
    request: Request,
    visitor: Somebody,
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
        return _page(request, visitor, name, offer, params=params, wrong=wrong, status=422)
    outcome = await _called(sandbox, visitor, name, offer, given)
    status = 200 if outcome.error is None else told(outcome.error).status
    return _page(request, visitor, name, offer, params=params, outcome=outcome, status=status)


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


async def _called(sandbox: Sandbox, visitor: Visitor, name: str, offer: Offered, params: dict[str, Any]) -> Outcome:
    begun = perf_counter()
    error, text = None, ""
    try:
        result = await sandbox.runtime.modules.call(name, offer.kind, offer.name, params, visitor.caller)
        text = await run_in_threadpool(shown_result, result)  # not on the event loop: it may be large
    except SandboxError as caught:
        error = caught
    taken = (perf_counter() - begun) * 1000
    waiting = await run_in_threadpool(_waiting, sandbox, visitor, name)
    return Outcome(taken, text[:LONGEST_SHOWN], max(0, len(text) - LONGEST_SHOWN), error, waiting)


def _waiting(sandbox: Sandbox, visitor: Visitor, module: str) -> tuple[AccessRequest, ...]:
    """Return the pending requests of a module and user: a module can file requests without failing."""
    with serving(visitor.caller):
        own = sandbox.access.administration.own_requests(Page(limit=_LOOKED_AT)).items
    label, session = f"module:{module}", visitor.caller.session_key
    return tuple(
        one
        for one in own
        if one.state is RequestState.PENDING
        and one.origin.session_key == session
        and (str(one.access.subject) == label or label in one.chain)
    )


def _offer(sandbox: Sandbox, name: str, surface: str, operation: str) -> Offered:
    """Return the function to run; an unknown one is an error that lists the known ones."""
    extension = find(sandbox, "module", name)
    extension.require_sound()
    found = [one for one in offers(sandbox, extension) if one.kind in SURFACES]
    for one in found:
        if (one.kind, one.name) == (surface, operation):
            return one
    there = ", ".join(f"{one.kind} {one.name}" for one in found) or "nothing"
    raise ExtensionUnknown(f"module {name} has no {surface} {operation!r}; it offers: {there}")


def _page(
    request: Request,
    visitor: Visitor,
    name: str,
    offer: Offered,
    *,
    params: str | None = None,
    wrong: str = "",
    outcome: Outcome | None = None,
    status: int = 200,
) -> Response:
    typed = _example(offer) if params is None else params
    context: dict[str, Any] = {
        "name": name,
        "offer": offer,
        "params": typed,
        "wrong": wrong,
        "outcome": outcome,
        "code": code,
    }
    return render(request, "running/run.html", visitor=visitor, status=status, longest=LONGEST_PARAMS, **context)


def _example(offer: Offered) -> str:
    return json.dumps(dict.fromkeys(offer.parameters, ""), indent=2) if offer.parameters else "{}"


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
