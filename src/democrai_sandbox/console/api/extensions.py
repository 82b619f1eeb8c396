"""Extensions, their installation and settings; MCP servers and models; calls of modules as the caller, and tasks."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import Depends, Path, Query, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from democrai_sandbox.console.auth import ServedRequest, Visitor, holder, require_administrator, require_fresh
from democrai_sandbox.console.problems import status_of
from democrai_sandbox.console.render import PlainResponse, jsonable, weight
from democrai_sandbox.errors import ExtensionFailed, SandboxError, TaskUnknown
from democrai_sandbox.host import extension_admin, overview
from democrai_sandbox.host.overview import ExtensionState
from democrai_sandbox.host.run_modes import RunMode
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.manifests.lint import FindingCode, Severity
from democrai_sandbox.manifests.models import DEFAULT_TIMEOUT_MS, McpTransport
from democrai_sandbox.runtime.access_environment import serving
from democrai_sandbox.runtime.extensions.settings import McpApproval
from democrai_sandbox.runtime.installs.environments import InstallState
from democrai_sandbox.runtime.store.values import TaskFilter, TaskState

from .openapi import ApiAnswer, ApiInput, Data, Id, ListPage, Members, Named, Paging, Text, operation, router

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from democrai_sandbox.host.overview import ExtensionSummary
    from democrai_sandbox.host.sandbox import Sandbox
    from democrai_sandbox.runtime.store import Task

extensions = router("extensions")
Reader = Annotated[ServedRequest, Depends(holder(Scope.SUBJECTS_READ))]
Manager = Annotated[ServedRequest, Depends(holder(Scope.EXTENSIONS_MANAGE))]
Kind = Annotated[str, Path(max_length=100)]
Name = Annotated[str, Path(min_length=1, max_length=200)]
Answer = TypeVar("Answer", bound=ApiAnswer)
ExtensionName = Annotated[str, Path(min_length=1, max_length=300)]


class ModuleFunction(ApiAnswer):
    """A function of a module."""

    kind: Text
    name: Text
    parameters: list[Text]
    hint: Text
    every: float | None
    """Seconds between the runs of a scheduled task."""


class ExtensionEntry(ApiAnswer):
    """An extension in the list of all."""

    kind: Named
    name: Text
    state: ExtensionState
    version: Text
    description: Text
    isolation: Text
    mode: RunMode
    """Whether it runs in a worker, and the kernel confines it."""
    mode_reason: Text
    problem_count: int
    finding_count: int
    offers: list[ModuleFunction]


class ExtensionList(ApiAnswer):
    """All extensions, by kind and name."""

    items: list[ExtensionEntry]


class ManifestProblem(ApiAnswer):
    """A problem that keeps an extension from running."""

    pointer: Text
    message: Text
    suggestion: Text
    line: int


class ManifestFinding(ApiAnswer):
    """Advice about a valid manifest."""

    code: FindingCode
    severity: Severity
    pointer: Text
    message: Text
    advice: Text
    line: int


class InstallProgress(ApiAnswer):
    """The last step of an installation."""

    stage: Text
    text: Text
    fraction: float | None


class InstallSummary(ApiAnswer):
    """State of the environment of an engine or extractor."""

    state: InstallState
    environment: Text | None
    packages: list[Text]
    progress: InstallProgress | None
    problem: Text


class NewInstall(ApiInput):
    """Options of an installation."""

    again: bool = Field(default=False, description="Rebuild the environment even if it is ready.")


class Settings(ApiAnswer):
    """Settings of an engine or extractor."""

    settings: Members
    source: Text
    """`configuration` or `database`. Values of the configuration are changed in its file."""
    url_keys: list[Text]
    """Settings whose values are URLs that the extension may use."""


class SettingChanges(ApiInput):
    """Changes; other values stay."""

    set: dict[str, Any] = Field(default={}, description="Values by name: any JSON.")
    unset: list[str] = Field(default=[], description="Names to remove.")


# For HTTP requests without a body.
_AS_USUAL, _NO_SETTING_CHANGES = NewInstall(), SettingChanges()


class Limit(ApiAnswer):
    """A limit and its origin."""

    section: Text
    name: Text
    number: int


class LatestOutput(ApiAnswer):
    """The last output, and the number of dropped characters before it."""

    text: Text
    dropped: int


class ExtensionDetail(ExtensionEntry):
    """An extension in full."""

    folder: Text
    manifest_file: Text
    manifest: Text
    problems: list[ManifestProblem]
    findings: list[ManifestFinding]
    install: InstallSummary | None
    limits: list[Limit]
    printed: LatestOutput


@extensions.get("/extensions", **operation(Scope.SUBJECTS_READ))
def list_extensions(served: Reader) -> ExtensionList:
    """List all extensions with their functions; administrators also see their folders and problems."""
    found = overview.list_extensions(served.sandbox)
    return ExtensionList(items=[ExtensionEntry.of(one, **_counts(served.sandbox, one)) for one in found])


@extensions.get("/extensions/{kind}/{name}", **operation(Scope.SUBJECTS_READ, 404))
def show_extension(served: Reader, kind: Kind, name: ExtensionName) -> ExtensionDetail:
    """Show an extension with its manifest, problems, lint findings, installation, limits and latest output."""
    require_administrator(served.visitor)
    sandbox = served.sandbox
    found = overview.extension_profile(sandbox, kind, name)
    whole = found.overview
    return ExtensionDetail.of(
        whole,
        **_counts(sandbox, whole),
        manifest_file=found.manifest_file,
        manifest="\n".join(found.lines),
        problems=[
            ManifestProblem.of(problem, suggestion=problem.suggestion or "", line=overview.line_of(problem))
            for problem in whole.problems
        ],
        limits=[dict(zip(("section", "name", "number"), limit, strict=True)) for limit in found.limits],
        printed=found.printed,
    )


@extensions.post(
    "/extensions/{kind}/{name}/install", status_code=202, **operation(Scope.EXTENSIONS_MANAGE, 404, 409, body=True)
)
async def install_extension(
    served: Manager, kind: Kind, name: ExtensionName, order: NewInstall = _AS_USUAL
) -> InstallSummary:
    """Start to install an engine or extractor in the background; `/extensions/{kind}/{name}` shows the progress."""
    with serving(served.caller):
        status = await extension_admin.install(served.sandbox, kind, name, served.caller, again=order.again)
    return InstallSummary.model_validate(status)


@extensions.get("/extensions/{kind}/{name}/settings", **operation(Scope.SUBJECTS_READ, 404))
def show_settings(served: Reader, kind: Kind, name: ExtensionName) -> Settings:
    """Show the settings of an engine or extractor; values with secret names are `***`."""
    return Settings.model_validate(extension_admin.settings_of(served.sandbox, kind, name, served.caller))


@extensions.patch("/extensions/{kind}/{name}/settings", **operation(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_settings(
    served: Manager, kind: Kind, name: ExtensionName, changes: SettingChanges = _NO_SETTING_CHANGES
) -> Settings:
    """Set or remove settings of an engine or extractor; others stay. The next call starts a worker with them."""
    change = partial(extension_admin.change_settings, wanted=changes.set, unwanted=changes.unset)
    return _changed(Settings, served, change, kind, name)


def _changed(answer: type[Answer], served: ServedRequest, change: Callable[..., object], *details: object) -> Answer:
    """Change an entry on behalf of a user who has recently entered the password, and return it."""
    require_fresh(served.request, served.visitor)
    with serving(served.caller):
        return answer.model_validate(change(served.sandbox, *details, served.caller))


def _counts(sandbox: Sandbox, one: ExtensionSummary) -> dict[str, Any]:
    """Return the members of an entry that the summary does not have: its functions, and two counts."""
    offers = overview.runnable_functions(sandbox, overview.find_extension(sandbox, one.kind, one.name))
    return {"offers": offers, "problem_count": len(one.problems), "finding_count": len(one.findings)}


mcp = router("mcp-servers")
_ServerUrl = Annotated[str, Field(max_length=2000, examples=["https://tools.example.com/mcp"])]


class McpServerEntry(ApiAnswer):
    """A registered MCP server."""

    name: Text
    transport: Text
    endpoint_url: Text
    """Without passwords and secret parameters."""
    enabled: bool
    timeout_ms: int
    source: Text
    """`configuration` or `database`. Entries of the configuration are changed in its file."""


class McpServerList(ApiAnswer):
    """The registry, by name."""

    approval: McpApproval
    """Whether the endpoint of a registered server also needs an approval."""
    items: list[McpServerEntry]


class NewMcpServer(ApiInput):
    """A server to register."""

    name: str = Field(max_length=200)
    transport: str = Field(default=McpTransport.STREAMABLE_HTTP.value, description="`streamable_http` or `sse`.")
    endpoint_url: _ServerUrl
    enabled: bool = True
    timeout_ms: int = DEFAULT_TIMEOUT_MS


class McpServerChanges(ApiInput):
    """Changes; other values stay."""

    transport: str | None = None
    endpoint_url: _ServerUrl | None = None
    enabled: bool | None = None
    timeout_ms: int | None = None


_NO_SERVER_CHANGES = McpServerChanges()


@mcp.get("/mcp-servers", **operation(Scope.SUBJECTS_READ))
def list_mcp_servers(served: Reader) -> McpServerList:
    """List registered MCP servers, enabled or not. For administrators."""
    found = extension_admin.mcp_servers(served.sandbox, served.caller)
    approval = served.sandbox.settings.extensions.mcp_approval
    return McpServerList(approval=approval, items=[McpServerEntry.model_validate(one) for one in found])


@mcp.post("/mcp-servers", status_code=201, **operation(Scope.EXTENSIONS_MANAGE, 409, body=True))
def add_mcp_server(served: Manager, new: NewMcpServer) -> McpServerEntry:
    """Register a server on all nodes. Modules can use it at once, unless its endpoint needs an approval first."""
    return _changed(McpServerEntry, served, extension_admin.add_mcp_server, new.model_dump())


@mcp.patch("/mcp-servers/{name}", **operation(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_mcp_server(served: Manager, name: Name, changes: McpServerChanges = _NO_SERVER_CHANGES) -> McpServerEntry:
    """Change a server. The name cannot be changed, because approvals refer to it."""
    return _changed(McpServerEntry, served, extension_admin.change_mcp_server, name, _given(changes))


@mcp.delete("/mcp-servers/{name}", **operation(Scope.EXTENSIONS_MANAGE, 404, 409))
def remove_mcp_server(served: Manager, name: Name) -> McpServerEntry:
    """Remove a server and return it. Approvals of its endpoint remain."""
    with serving(served.caller):
        return McpServerEntry.model_validate(extension_admin.remove_mcp_server(served.sandbox, name, served.caller))


models = router("models")
_ModelUrl = Annotated[
    str,
    Field(
        max_length=2000, description="The URL before `/chat/completions`.", examples=["https://models.example.com/v1"]
    ),
]
_Known = Annotated[str, Field(max_length=500, description="The name of the model at the endpoint.")]
_Key = Annotated[str, Field(max_length=4096, description="Stored encrypted and never returned.")]


class ModelItem(ApiAnswer):
    """A model, or a missing model that an agent uses."""

    name: Text
    target: Text
    """The target that an agent must be allowed to send to; empty if unknown."""
    is_configured: bool
    """Whether the model exists."""
    agents: list[Text]
    """Agents that use it."""
    source: Text
    """`configuration`, `database` or `application`; empty for a missing model. Models of the database can be changed
    here."""
    endpoint: Text
    model: Text
    """The name of the model at the endpoint."""
    has_key: bool
    """Whether it has a key, which is never returned."""
    timeout_seconds: float | None
    options: Members
    """Options sent with each HTTP request, without secret values."""


class ModelList(ApiAnswer):
    """All models, by name."""

    items: list[ModelItem]


class NewModel(ApiInput):
    """A model to add."""

    name: str = Field(max_length=200)
    endpoint: _ModelUrl
    model: _Known
    api_key: _Key | None = None
    timeout_seconds: float | None = None
    options: dict[str, Any] | None = None


class ModelChanges(ApiInput):
    """Changes; other values stay. A new endpoint needs the key again."""

    endpoint: _ModelUrl | None = None
    model: _Known | None = None
    api_key: _Key | None = Field(default=None, description="A new key, or an empty text to remove it.")
    timeout_seconds: float | None = None
    options: dict[str, Any] | None = None


_NO_MODEL_CHANGES = ModelChanges()


@models.get("/models", **operation(Scope.SUBJECTS_READ))
def list_models(served: Reader) -> ModelList:
    """List models and the agents that use them; keys are never shown. For administrators."""
    found = extension_admin.models(served.sandbox, served.caller)
    return ModelList(items=[ModelItem.model_validate(one) for one in found])


@models.post("/models", status_code=201, **operation(Scope.EXTENSIONS_MANAGE, 409, body=True))
def add_model(served: Manager, new: NewModel) -> ModelItem:
    """Add a model on all nodes. Agents can use it at once if they may send to its endpoint."""
    entry = _given(new)
    return _changed(ModelItem, served, extension_admin.add_model, entry.pop("name"), entry)


@models.patch("/models/{name}", **operation(Scope.EXTENSIONS_MANAGE, 404, 409, body=True))
def change_model(served: Manager, name: Name, changes: ModelChanges = _NO_MODEL_CHANGES) -> ModelItem:
    """Change a model on all nodes. The name cannot be changed. Agents use the change from their next call."""
    return _changed(ModelItem, served, extension_admin.change_model, name, _given(changes))


@models.delete("/models/{name}", **operation(Scope.EXTENSIONS_MANAGE, 404, 409))
def remove_model(served: Manager, name: Name) -> ModelItem:
    """Remove a model and its key, and return it. Agents that use it fail afterwards."""
    with serving(served.caller):
        return ModelItem.model_validate(extension_admin.remove_model(served.sandbox, name, served.caller))


def _given(order: ApiInput) -> dict[str, Any]:
    """Return the given values."""
    return {name: value for name, value in order.model_dump().items() if value is not None}


modules = router("modules")
Runner = Annotated[ServedRequest, Depends(holder(Scope.MODULES_RUN))]
LARGEST_RESULT = 16 * 1024 * 1024
"""Maximum size of a result, which is held in memory several times."""


class ModuleCall(ApiInput):
    """Arguments of a call."""

    params: dict[str, Any] = Field(default={}, description="Arguments by name.")


class TaskCall(ModuleCall):
    """Arguments of a task."""

    timeout_seconds: float | None = Field(default=None, gt=0, description="At most the timeout of the task.")


# For HTTP requests without a body: a call without arguments.
_NO_PARAMS, _NO_TASK_PARAMS = ModuleCall(), TaskCall()


class CallResult(ApiAnswer):
    """Result of a call."""

    result: Data


_CALLS = operation(Scope.MODULES_RUN, 404, 409, 502, 504, body=True) | {"response_model": CallResult}


class StartedTask(ApiAnswer):
    """A queued task; `/tasks/{task_id}` shows its state."""

    id: str


@modules.post("/modules/{module}/render", **_CALLS)
async def render_module(served: Runner, module: Name, call: ModuleCall = _NO_PARAMS) -> Response:
    """Return the page of a module for the caller."""
    return await _result(served.sandbox.runtime.modules.render(module, call.params, served.caller))


@modules.post("/modules/{module}/actions/{action}", **_CALLS)
async def run_action(served: Runner, module: Name, action: Name, call: ModuleCall = _NO_PARAMS) -> Response:
    """Run an action of a module. A denial is a 403 with the target, the fix and the pending request."""
    return await _result(served.sandbox.runtime.modules.action(module, action, call.params, served.caller))


@modules.post("/modules/{module}/commands/{command}", **_CALLS)
async def run_command(served: Runner, module: Name, command: Name, call: ModuleCall = _NO_PARAMS) -> Response:
    """Run a command of a module."""
    return await _result(served.sandbox.runtime.modules.command(module, command, call.params, served.caller))


@modules.post(
    "/modules/{module}/tasks/{task}", status_code=202, **operation(Scope.MODULES_RUN, 404, 409, 429, body=True)
)
async def start_task(served: Runner, module: Name, task: Name, call: TaskCall = _NO_TASK_PARAMS) -> StartedTask:
    """Start a task of a module for the caller, without waiting for it."""
    runtime = served.sandbox.runtime
    await runtime.modules.started(module)
    runtime.modules.loaded(module).surface("task", task)  # raises an error for a broken module or an unknown task
    number = await runtime.tasks.submit(module, task, call.params, served.caller, timeout=call.timeout_seconds)
    return StartedTask(id=number)


async def _result(work: Awaitable[Any]) -> Response:
    """Wait for a module. An error of a service that it used, such as an MCP server, counts as its failure."""
    try:
        value = await work
    except SandboxError as error:
        if status_of(error) is not None:
            raise
        raise ExtensionFailed(str(error), kind=error.code) from error
    return await run_in_threadpool(_answer, value)  # not on the event loop, which it would block


def _answer(value: Any) -> Response:
    if weight(value) > LARGEST_RESULT:
        raise ExtensionFailed(f"the result is larger than {LARGEST_RESULT:,} characters", kind="TooLarge")
    return PlainResponse({"result": jsonable(value)})


tasks = router("tasks")
TaskReader = Annotated[ServedRequest, Depends(holder(Scope.TASKS_READ))]


class TaskQuery(Paging):
    """Filters of tasks."""

    module: str = Field(default="", max_length=200)
    name: str = Field(default="", max_length=200)
    user: str = Field(default="", max_length=500)
    state: list[TaskState] = Field(default=[], description="May be repeated.")
    scheduled: bool | None = None


class TaskUser(ApiAnswer):
    """User of the task; empty for a scheduled task."""

    user_id: Text
    organization_id: Text
    session_key: Text
    scheduled: bool


class TaskProgress(ApiAnswer):
    """Last progress report of the task."""

    fraction: float | None
    message: Text


class TaskFailure(ApiAnswer):
    """Reason of a failure; `denial` is the code of a denial, if any."""

    type: Text
    message: Text
    traceback: Text
    denial: Text


class TaskRecord(ApiAnswer):
    """A task."""

    id: str
    module: Text
    name: Text
    origin: TaskUser
    state: TaskState
    params: Data
    progress: TaskProgress
    result: Data
    failure: TaskFailure | None
    node: Text
    attempt: int
    cancel_requested: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


class Cancelled(ApiAnswer):
    """Whether a running or queued task was canceled."""

    cancelled: bool


@tasks.get("/tasks", **operation(Scope.TASKS_READ, query=True))
def list_tasks(served: TaskReader, query: Annotated[TaskQuery, Query()]) -> ListPage[TaskRecord]:
    """List tasks, newest first; users other than administrators see their own."""
    store = served.sandbox.runtime.store
    user, states = query.user if served.visitor.may_decide else served.caller.user_id, tuple(query.state)
    wanted = TaskFilter(query.module, query.name, user_id=user, states=states, scheduled=query.scheduled)
    found = store.tasks(wanted, limit=query.limit, before=query.after)
    last = found[-1].id if len(found) == query.limit else ""
    following = last if last and store.tasks(wanted, limit=1, before=last) else ""
    return ListPage[TaskRecord](items=[TaskRecord.model_validate(task) for task in found], next=following)


@tasks.get("/tasks/{task_id}", **operation(Scope.TASKS_READ, 404))
def show_task(served: TaskReader, task_id: Id) -> TaskRecord:
    """Show a task: its progress, result or failure."""
    return TaskRecord.model_validate(own_task(served.sandbox.runtime.store.task(task_id), served.visitor))


@tasks.post("/tasks/{task_id}/cancel", **operation(Scope.TASKS_CANCEL, 404))
async def cancel_task(served: Annotated[ServedRequest, Depends(holder(Scope.TASKS_CANCEL))], task_id: Id) -> Cancelled:
    """Cancel a task on any node."""
    runtime = served.sandbox.runtime
    own_task(await runtime.tasks.status(task_id), served.visitor)
    return Cancelled(cancelled=await runtime.tasks.cancel(task_id, f"canceled by {served.caller.user_id}"))


def own_task(task: Task, visitor: Visitor) -> Task:
    """Return a task that the caller may see; a task of another user looks like a missing one."""
    if visitor.may_decide or (task.origin.user_id and task.origin.user_id == visitor.caller.user_id):
        return task
    raise TaskUnknown(f"unknown task {task.id}")
