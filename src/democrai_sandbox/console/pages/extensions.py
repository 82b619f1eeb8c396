"""Extensions: list, installation, settings, MCP servers and models; functions of modules, run as users; and tasks."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from urllib.parse import quote

from fastapi import APIRouter, Form, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from democrai_sandbox.access.values import PageRequest, RequestFilter, RequestState, ResultPage
from democrai_sandbox.console.api.extensions import own_task
from democrai_sandbox.console.problems import told
from democrai_sandbox.console.render import code, code_line, state_mark
from democrai_sandbox.errors import ExtensionFailed, ExtensionUnknown, SandboxDenied
from democrai_sandbox.host import extension_admin
from democrai_sandbox.host.config.display import HIDDEN
from democrai_sandbox.host.overview import (
    SURFACES,
    ExtensionState,
    extension_profile,
    find_extension,
    line_of,
    list_extensions,
    runnable_functions,
)
from democrai_sandbox.host.settings import MODEL_TIMEOUT
from democrai_sandbox.manifests.models import McpTransport
from democrai_sandbox.policy import InvalidInputError, SandboxError, Subject, SubjectKind
from democrai_sandbox.runtime.access_environment import serving
from democrai_sandbox.runtime.store import TaskFilter, TaskState

from .parameters import ROWS, AdministratorPage, Page, SignedInPage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from democrai_sandbox.access.values import StoredRequest as AccessRequest
    from democrai_sandbox.console.auth import Visitor
    from democrai_sandbox.host.extension_admin import ConfiguredModel, ConfiguredServer
    from democrai_sandbox.host.overview import ExtensionProfile, ExtensionSummary, RunnableFunction
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.runtime.store import Task

router = APIRouter()

_HEADINGS = (("module", "Modules"), ("engine", "Engines"), ("extractor", "Extractors"))
_LONGEST_LINE = 2000
_SERVER_ACTS = MappingProxyType({"enable": "server_enabled", "disable": "server_disabled", "remove": "server_removed"})
_MODEL_ACTS = MappingProxyType(
    {"change": "model_changed", "remove_key": "model_key_removed", "remove": "model_removed"}
)

_MESSAGES = frozenset({"server_added", "model_added", *_SERVER_ACTS.values(), *_MODEL_ACTS.values()})


@router.get("/extensions")
def listed(page: SignedInPage) -> HTMLResponse:
    """List all extensions by kind; users who may not decide see runnable modules only."""
    found = list_extensions(page.sandbox)
    if not page.visitor.may_decide:
        found = tuple(one for one in found if one.kind.value == "module" and one.state is ExtensionState.OK)
    kinds = [(title, [one for one in found if one.kind.value == kind]) for kind, title in _HEADINGS]
    return page.render(
        "extensions/list.html",
        kinds=[pair for pair in kinds if pair[1]],
        warnings=_warnings,
        models=extension_admin.models(page.sandbox, page.caller) if page.visitor.may_decide else (),
        servers=extension_admin.mcp_servers(page.sandbox, page.caller) if page.visitor.may_decide else (),
        holds=_holds(page),
        approval=page.sandbox.settings.extensions.mcp_approval,
        as_json=_as_json,
        usual_timeout=f"{MODEL_TIMEOUT:g}",
        transports=[(one.value, one.value) for one in McpTransport],
    )


@router.get("/extensions/{kind}/{name}")
def shown(page: SignedInPage, kind: str, name: str) -> HTMLResponse:
    """Show one extension; its declarations and output need the right to decide."""
    sandbox = page.sandbox
    found = extension_profile(sandbox, kind, name)
    has_settings = page.visitor.may_decide and kind != "module"
    settings = extension_admin.settings_of(sandbox, kind, name, page.caller) if has_settings else None
    return page.render(
        "extensions/show.html",
        found=found,
        about=found.overview,
        marks=_marks(found),
        line_of=line_of,
        longest=_LONGEST_LINE,
        code=code,
        code_line=code_line,
        why_not=page.why_not,
        holds={
            "install_started": found.overview.state is ExtensionState.INSTALLING,
            "settings_changed": page.is_present(settings),
        },
        settings=settings,
        as_json=_as_json,
    )


@router.post("/extensions/{kind}/{name}/install")
async def install(page: AdministratorPage, kind: str, name: str, *, again: bool = False) -> RedirectResponse:
    """Start to install an engine or extractor in the background; the page of the extension shows the progress."""
    with serving(page.caller):
        await extension_admin.install(page.sandbox, kind, name, page.caller, again=again)
    return page.redirect(f"/extensions/{kind}/{quote(name)}", done="install_started")


@router.post("/extensions/{kind}/{name}/settings")
def change_settings(
    page: AdministratorPage,
    kind: str,
    name: str,
    *,
    key: Annotated[str, Form(max_length=200)],
    value: Annotated[str, Form(max_length=100_000)] = "",
    act: Annotated[str, Form(max_length=20)] = "set",
) -> RedirectResponse:
    """Set or remove one setting of an engine or extractor."""
    here = f"/extensions/{kind}/{quote(name)}"
    page.require_fresh(here)
    is_unset = act == "unset"
    with serving(page.caller):
        extension_admin.change_settings(
            page.sandbox,
            kind,
            name,
            page.caller,
            wanted={} if is_unset else {_key(key): _value(value)},
            unwanted=(key,) if is_unset else (),
        )
    present = extension_admin.settings_of(page.sandbox, kind, name, page.caller)
    return page.redirect(here, done="settings_changed", seen=state_mark(present))


@router.post("/mcp-servers")
def add_server(
    page: AdministratorPage,
    name: Annotated[str, Form(max_length=200)],
    endpoint_url: Annotated[str, Form(max_length=2000)],
    transport: Annotated[str, Form(max_length=50)],
) -> RedirectResponse:
    """Register an MCP server."""
    page.require_fresh("/extensions")
    entry = {"name": name.strip(), "endpoint_url": endpoint_url.strip(), "transport": transport}
    with serving(page.caller):
        added = extension_admin.add_mcp_server(page.sandbox, entry, page.caller)
    return _done(page, "server_added", added.name)


@router.post("/mcp-servers/{name}")
def change_server(page: AdministratorPage, name: str, act: Annotated[str, Form(max_length=20)]) -> RedirectResponse:
    """Enable, disable or remove an MCP server."""
    sandbox = page.sandbox
    if act not in _SERVER_ACTS:
        raise InvalidInputError.of(f"expected one of {', '.join(_SERVER_ACTS)}", pointer="/act")
    if act == "enable":
        page.require_fresh("/extensions")
    with serving(page.caller):
        if act == "remove":
            extension_admin.remove_mcp_server(sandbox, name, page.caller)
        else:
            extension_admin.change_mcp_server(sandbox, name, {"enabled": act == "enable"}, page.caller)
    return _done(page, _SERVER_ACTS[act], name)


class ModelForm(BaseModel):
    """Form of a model. An empty key field keeps the key."""

    endpoint: str = Field(default="", max_length=2000)
    model: str = Field(default="", max_length=500)
    api_key: str = Field(default="", max_length=4096)
    timeout_seconds: str = Field(default="", max_length=50)
    options: str = Field(default="", max_length=20_000)

    def facts(self, shown: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values to store, without options that equal ``shown``."""
        found: dict[str, Any] = {"endpoint": self.endpoint.strip(), "model": self.model.strip()}
        if self.api_key.strip():
            found["api_key"] = self.api_key.strip()
        found["timeout_seconds"] = _seconds(self.timeout_seconds)
        options = _options(self.options)
        if options == dict(shown):
            return found
        if HIDDEN in self.options and HIDDEN in _as_json(dict(shown)):
            message = f"a value that is shown as {HIDDEN} is secret: enter it again to change the options"
            raise InvalidInputError.of(message, pointer="/options")
        return {**found, "options": options}


class NewModelForm(ModelForm):
    """Form of a new model."""

    name: str = Field(max_length=200)


class ChangedModelForm(ModelForm):
    """Form of a changed model."""

    act: str = Field(max_length=20)


@router.post("/models")
def add_model(page: AdministratorPage, sent: Annotated[NewModelForm, Form()]) -> RedirectResponse:
    """Add a model."""
    page.require_fresh("/extensions")
    with serving(page.caller):
        added = extension_admin.add_model(page.sandbox, sent.name.strip(), sent.facts({}), page.caller)
    return _done(page, "model_added", added.name)


@router.post("/models/{name}")
def change_model(page: AdministratorPage, name: str, sent: Annotated[ChangedModelForm, Form()]) -> RedirectResponse:
    """Change a model, remove its key, or remove it."""
    sandbox, act = page.sandbox, sent.act
    if act not in _MODEL_ACTS:
        raise InvalidInputError.of(f"expected one of {', '.join(_MODEL_ACTS)}", pointer="/act")
    if act != "remove":
        page.require_fresh("/extensions")
    with serving(page.caller):
        if act == "remove":
            extension_admin.remove_model(sandbox, name, page.caller)
        else:
            present = _entry(page, "model_changed", name)
            shown = present.options if isinstance(present, extension_admin.ConfiguredModel) else {}
            changes = {"api_key": ""} if act == "remove_key" else sent.facts(shown)
            extension_admin.change_model(sandbox, name, changes, page.caller)
    return _done(page, _MODEL_ACTS[act], name)


def _done(page: Page, done: str, name: str) -> RedirectResponse:
    """Redirect to the list, which shows the message until the model or server changes again."""
    return page.redirect("/extensions", done=done, about=name, seen=state_mark(_entry(page, done, name)))


def _holds(page: Page) -> dict[str, bool]:
    """Return whether the message of the address is still true."""
    done, about = page.query.get("done", ""), page.query.get("about", "")
    known = page.visitor.may_decide and done in _MESSAGES
    return {done: known and page.is_present(_entry(page, done, about))}


def _entry(page: Page, done: str, name: str) -> ConfiguredModel | ConfiguredServer | None:
    """Return the model or server of a message, or None if it was removed."""
    listed = extension_admin.models if done.startswith("model_") else extension_admin.mcp_servers
    return next((one for one in listed(page.sandbox, page.caller) if one.name == name), None)


def _seconds(text: str) -> float:
    """Return the typed timeout, or the default."""
    if not text.strip():
        return MODEL_TIMEOUT
    try:
        return float(text)
    except ValueError:
        raise InvalidInputError.of("expected a number of seconds", pointer="/timeout_seconds") from None


def _options(text: str) -> dict[str, Any]:
    """Return the typed options, a JSON object; empty for an empty text."""
    found = _value(text) if text.strip() else {}
    if not isinstance(found, dict):
        raise InvalidInputError.of('expected a JSON object, such as {"temperature": 0.2}', pointer="/options")
    return found


def _key(text: str) -> str:
    if not text.strip():
        raise InvalidInputError.of("expected the name of a setting", pointer="/key")
    return text.strip()


def _value(text: str) -> Any:
    """Return the typed value: JSON, or otherwise the text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _as_json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _warnings(one: ExtensionSummary) -> int:
    return sum(finding.severity == "warning" for finding in one.findings)


def _marks(found: ExtensionProfile) -> dict[int, str]:
    """Return the marks of manifest lines: ``wrong`` for a problem, ``found`` for a finding."""
    marks = {finding.line: "found" for finding in found.overview.findings if finding.line}
    return marks | {line_of(problem): "wrong" for problem in found.overview.problems if line_of(problem)}


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
def show_form(page: SignedInPage, name: str, surface: str, operation: str) -> Response:
    """Show the form of a function of a module."""
    return _form_page(page, name, _offer(page.sandbox, name, surface, operation))


@router.post("/extensions/module/{name}/run/{surface}/{operation}")
async def run_function(
    page: SignedInPage, *, name: str, surface: str, operation: str, params: Annotated[str, Form()] = ""
) -> Response:
    """Run the function and show the result on the same page; a task continues in the background on a separate page."""
    sandbox = page.sandbox
    offer = _offer(sandbox, name, surface, operation)
    try:
        given = read_params(params)
        if surface == _TASK:
            task_id = await sandbox.runtime.tasks.submit(name, operation, given, page.caller)
            return page.redirect(f"/tasks/{task_id}", done="task_started")
    except InvalidInputError as error:
        wrong = "; ".join(problem.message for problem in error.problems)
        return _form_page(page, name, offer, params=params, wrong=wrong, status=422)
    outcome = await _called(sandbox, page.visitor, name, offer, given)
    status = 200 if outcome.error is None else told(outcome.error).status
    return _form_page(page, name, offer, params=params, outcome=outcome, status=status)


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
    page: Page,
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
    context: dict[str, Any] = {"name": name, "offer": offer, "params": params, "wrong": wrong, "outcome": outcome}
    return page.render("running/run.html", status=status, longest=LONGEST_PARAMS, code=code, **context)


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


@router.get("/tasks")
def list_tasks(page: SignedInPage) -> HTMLResponse:
    """List tasks, newest first: all for users who may decide, their own for others."""
    sandbox = page.sandbox
    state, module = page.choice("state", TaskState), page.text("module")
    user = page.text("user") if page.visitor.may_decide else page.caller.user_id
    wanted = TaskFilter(module=module, user_id=user, states=(state,) if state else ())
    rows = sandbox.runtime.store.tasks(wanted, limit=ROWS + 1, before=page.text("after"))
    listing = ResultPage(rows[:ROWS], rows[ROWS - 1].id if len(rows) > ROWS else "")
    modules = sorted(module.extension.name for module in sandbox.runtime.modules.all_loaded())
    return page.render(
        "tasks/list.html",
        listing=listing,
        states=[("", "any"), *((one.value, one.value) for one in TaskState)],
        # Only modules that can have tasks: a broken module can have any name.
        modules=[("", "any"), *((name, name) for name in modules)],
        scheduled=tuple(_scheduled(sandbox)) if page.visitor.may_decide else (),
        wanted={"state": state or "", "module": module, "user": user},
    )


@router.get("/tasks/{task_id}")
def show_task(page: SignedInPage, task_id: str) -> HTMLResponse:
    """Show one task."""
    sandbox = page.sandbox
    task = own_task(sandbox.runtime.store.task(task_id), page.visitor)
    return page.render(
        "tasks/show.html",
        task=task,
        code=code,
        params=shown_result(task.params),
        result=shown_result(task.result),
        asked=_asked(sandbox, page.visitor, task),
        can_retry=task.state in _AGAIN and not task.origin.scheduled,
        holds={"task_started": not task.state.is_final, "task_cancelled": task.state is TaskState.CANCELLED},
    )


@router.post("/tasks/{task_id}/cancel")
async def cancel_task(page: SignedInPage, task_id: str) -> RedirectResponse:
    """Cancel a task on any node."""
    tasks = page.sandbox.runtime.tasks
    own_task(await tasks.status(task_id), page.visitor)
    ended = await tasks.cancel(task_id, f"canceled by {page.caller.user_id}")
    return page.redirect(f"/tasks/{task_id}", done="task_cancelled" if ended else "")


@router.post("/tasks/{task_id}/retry")
async def retry_task(page: SignedInPage, task_id: str) -> RedirectResponse:
    """Run a task again for this user."""
    tasks = page.sandbox.runtime.tasks
    own_task(await tasks.status(task_id), page.visitor)
    await tasks.retry(task_id, page.caller)
    return page.redirect(f"/tasks/{task_id}", done="task_started")


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


def _scheduled(sandbox: Sandbox) -> Iterator[dict[str, object]]:
    for extension in sandbox.runtime.modules.extensions.values():
        for offer in runnable_functions(sandbox, extension):
            if offer.every is not None:
                due = sandbox.runtime.store.next_time(extension.name, offer.name)
                yield {"module": extension.name, "name": offer.name, "every": offer.every, "due": due}
