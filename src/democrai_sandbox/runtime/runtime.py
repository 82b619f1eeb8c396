"""Composition of all runtimes: created once before the first guard, started when the store is ready."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

from democrai_sandbox import policy
from democrai_sandbox.access import Administration
from democrai_sandbox.access.caller import Caller, GuardedSubject
from democrai_sandbox.errors import ExternalAccessAdminRequired, RuntimeServiceFailed, SandboxDenied
from democrai_sandbox.guard import access_changed, configure_guard, served
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.manifests import ManifestKind, ModuleManifest, ToolDeclaration, parse_manifest
from democrai_sandbox.runtime.ai.runtime import AiRuntime
from democrai_sandbox.runtime.ai.shared_calls import SharedCalls
from democrai_sandbox.runtime.calls.outcome import ExtensionOutput, divert_output, watch_reports
from democrai_sandbox.runtime.confinement.confinement import Confinement
from democrai_sandbox.runtime.extensions.importer import Declarations, Surface, preload
from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, discover
from democrai_sandbox.runtime.extensions.shadow_runs import ShadowRuns
from democrai_sandbox.runtime.mcp.runtime import services as mcp_services
from democrai_sandbox.runtime.media.service import Media, MediaServices

from . import sdk_services
from .access_environment import GuardSurroundings
from .children.launch_request import LaunchRequests
from .children.path_rights import PathRights
from .children.service import ChildService
from .engines import EngineServices, InstalledRuntime
from .mcp import McpRuntime, McpSettings
from .modules import ACTION, IsolatedWorkers, LoadedModule, ModuleRuntime
from .store import Configured, RuntimeStore
from .task_runtime import TaskRuntime, TaskService

if TYPE_CHECKING:
    from democrai_sandbox.access import Access
    from democrai_sandbox.access.resumptions import ResumeHandler
    from democrai_sandbox.access.values import Requester, StoredRequest
    from democrai_sandbox.guard import AccessQuestion, Decider, DenialRecorder, EndpointObserver
    from democrai_sandbox.kernel.application import Kernel
    from democrai_sandbox.runtime.ai.asset_calls import Body
    from democrai_sandbox.runtime.ai.assets import Asset
    from democrai_sandbox.runtime.ai.model import Model
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.worker.process import ConnectionReport


_ACTS = MappingProxyType(
    {
        "approve_for_session": "session",
        "approve_permanently": "permanent",
        "deny_external_access": "deny",
        "revoke": "revoke",
    }
)
"""Functions of ``sdk.access``, and their acts."""


class _ManagingCaller(GuardSurroundings):
    """Access environment of a guarded caller, from the core's view of its guard."""

    def __init__(self, view: RawView) -> None:
        self._view = view

    def is_guarded(self) -> bool:
        return True

    def guard(self) -> GuardedSubject:
        return GuardedSubject(policy.Subject(*self._view.actor), self._view.chain)  # type: ignore[arg-type] # a kind as text


class AccessManagers:
    """The service behind the managing half of ``sdk.access``."""

    def __init__(self, access: Access, managers: Collection[policy.Subject]) -> None:
        self._node = access.node
        self._managers = frozenset(managers)

    def manage(self, view: RawView | None, act: str, details: dict[str, Any]) -> Any:
        """List pending requests, or decide. The service checks from the guard's view whether the caller may."""
        if view is None:
            raise ExternalAccessAdminRequired("the host decides through the access service, not through the SDK")
        administration = Administration(self._node, _ManagingCaller(view), managers=self._managers)
        if act == "pending":
            return [_request_fields(request) for request in administration.pending_requests().items]
        if act not in _ACTS:
            raise policy.InvalidInputError.of(f"unknown act {act!r}; one of: {', '.join(_ACTS)}", pointer="/act")
        outcome = administration.decide(_ACTS[act], details.get("id", ""), reason=details.get("reason", ""))
        made = outcome.decision
        decision = made and {"id": made.id, "effect": str(made.effect), "scope": str(made.scope)}
        return {"decision": decision, "skipped": outcome.skipped}


def _request_fields(request: StoredRequest) -> dict[str, Any]:
    wanted, origin = request.access, request.origin
    return {
        "id": request.id,
        "subject": str(wanted.subject),
        "resource_type": str(wanted.resource_type),
        "operation": str(wanted.operation),
        "target": wanted.target,
        "user_id": origin.user_id,
        "has_session": bool(origin.session_key),
        "count": request.count,
    }


_TASK = "task"
_SLACK = 5.0
"""Seconds beyond a call's own timeout, whose error is more specific."""


@dataclass(eq=False, repr=False)
class ModuleResumes(Mapping[str, "ResumeHandler"]):
    """Resume actions by name: actions and tasks of the modules, as ``name`` or ``module.name``.

    Nothing runs before ``open``.
    """

    _modules: ModuleRuntime
    _tasks: TaskRuntime
    _requester: Callable[[Requester], Caller]
    """Returns the caller of an action."""
    _timeout: float
    """Limit of a call in seconds."""
    _loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Run actions from now on, on the running loop."""
        self._loop = asyncio.get_running_loop()

    def __getitem__(self, action: str) -> ResumeHandler:
        if action not in set(self):
            raise KeyError(action)

        def resume(context: Any, *, origin: Requester, subject: policy.Subject, request_id: str) -> object:
            del request_id  # a module that must not repeat an action stores the id in its context
            self._resume(action, context, origin, subject)
            return None

        return resume

    def __iter__(self) -> Iterator[str]:
        for module in self._modules.all_loaded():
            for kind, name in module.surfaces:
                if kind in {ACTION, _TASK}:
                    yield name
                    yield f"{module.extension.name}.{name}"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _resume(self, action: str, context: Any, origin: Requester, subject: policy.Subject) -> None:
        """Run an action and wait for its end; for a task, wait until it is stored."""
        name, params = _own(action, subject), _params(context)
        caller = self._requester(origin)
        self._wait(self._modules.started(subject.name))
        surfaces = self._modules.loaded(subject.name).surfaces
        if (ACTION, name) not in surfaces and (_TASK, name) in surfaces:
            self._wait(self._tasks.submit(subject.name, name, params, caller))
        else:
            self._wait(self._modules.action(subject.name, name, params, caller))

    def _wait(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work on the loop and wait for it on this thread, which only serves resume actions."""
        if self._loop is None or self._loop.is_closed():
            work.close()
            raise RuntimeServiceFailed("cannot resume: the runtime is not running")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            future.result(self._timeout + _SLACK)
        except TimeoutError:
            future.cancel()
            raise


def as_asked(origin: Requester) -> Caller:
    """Return the requester from the request, without a role. Hosts with accounts look up the current role instead."""
    return Caller(origin.user_id, origin.organization_id, origin.session_key, task_id=origin.task_id)


def _own(action: str, subject: policy.Subject) -> str:
    """Return the action's name within its module. A subject can resume only its own module, and only as that module."""
    if subject.kind is not policy.SubjectKind.MODULE:
        what = f"{subject} has no actions: only a module can resume with one"
        raise policy.InvalidInputError.of(what, pointer="/resume_action")
    module, dot, name = action.rpartition(".")
    if dot and module != subject.name:
        raise policy.InvalidInputError.of(f"{action!r} is not an action of {subject}", pointer="/resume_action")
    return name


def _params(context: Any) -> dict[str, Any]:
    if context is None:
        return {}
    if type(context) is not dict:
        what = f"expected an object with the action's parameters, got {type(context).__name__}"
        raise policy.InvalidInputError.of(what, pointer="/resume_context")
    return context


@dataclass(eq=False, repr=False)
class WorkerHost:
    """Answers workers. Their statements about themselves have already been checked against the host's knowledge."""

    _decider: Decider
    _output: ExtensionOutput
    _recorder: DenialRecorder | None
    observe: Callable[[ConnectionReport], None]
    """Permits a connection of a worker in the kernel layer."""
    _shadows: ShadowRuns
    _services: dict[str, Callable[..., Any]] = field(default_factory=dict)
    limits_reached: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls that failed because of a limit, by subject and limit."""

    def serve(self, services: Mapping[str, Callable[..., Any]]) -> None:
        """Offer services to workers, as for code in this process."""
        self._services.update(services)

    @property
    def services(self) -> Sequence[str]:
        """Names that ``door`` accepts."""
        return tuple(self._services)

    def decide(self, question: AccessQuestion) -> bool | policy.AccessDecision:
        """Answer an access question from the guard of a worker."""
        return self._decider.decide(question)

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Call a service for the code in a worker."""
        service = self._services.get(name)
        if service is None:
            raise policy.InvalidInputError.of(f"service {name} is not available in workers")
        return service(RawView(*view), *args)

    def output(self, label: str, stream: str, text: str) -> None:
        """Store the output of a worker."""
        del stream
        self._output.add(label, text)

    def saw(self, label: str, question: AccessQuestion, *, allowed: bool, times: int) -> None:
        """Record a check that a candidate would decide differently for the subject of a worker."""
        self._shadows.saw_in(label, question, allowed=allowed, times=times)

    def limit_reached(self, label: str, limit: str) -> None:
        """Count a call that failed because of a limit."""
        self.limits_reached[label, limit] += 1

    def denied(self, label: str, denial: SandboxDenied) -> None:
        """Record a denial inside a worker."""
        del label
        sdk_services.record(self._recorder, denial)


NOBODY = Caller()
_RESUMED_WITHIN = 10.0
"""Seconds that a running resume action gets to finish when the runtime stops."""


class Runtime:
    """Everything that runs extensions in this process. Create one per process, before the first guard.

    ``async with`` starts and stops it on the host's event loop, which all its parts use.
    """

    def __init__(
        self,
        settings: RuntimeSettings,
        access: Access,
        *,
        models: Mapping[str, Model] | None = None,
        protected_paths: Iterable[str] = (),
        recorder: DenialRecorder | None = None,
        observer: EndpointObserver | None = None,
        kernel: Kernel | None = None,
        endpoints: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        requester: Callable[[Requester], Caller] = as_asked,
    ) -> None:
        """Read the manifests, configure the guard and install the SDK services. No extension code runs yet.

        ``protected_paths`` are files of the host, such as its configuration and the database of the access service.
        ``kernel`` is the prepared kernel layer of this application; with it, processes are confined. ``endpoints`` are
        URLs by name from the host's configuration, which the egress allowlist permits. ``requester`` returns the caller
        of a resume action; the default is the user, organization and session of the request, without a role.
        """
        preload()
        self.settings = settings
        self._recorder = recorder
        self.access = access
        self.registry = discover(settings)
        configured = Configured(settings.mcp_servers, settings.configurations, frozenset(models or {}))
        self.store = RuntimeStore(access.store.database, configured)
        self.confinement = Confinement(kernel, access, settings, self.registry, owned=self._own_places)
        self._endpoints = endpoints or {}
        own = (*protected_paths, *self.confinement.protected)
        self.shadows = ShadowRuns(self.store, access.node, self._hold_against)
        configure_guard(
            decider=access.service,
            recorder=recorder,
            observer=self.confinement.observer(observer),
            watcher=self.shadows,
            protected_paths=(*settings.protected, *own),
            native_packages=settings.native_packages,
        )
        self._make_processes(own)
        self._make_runtimes(models, own)
        self._resumes = ModuleResumes(self.modules, self.tasks, requester, settings.call_timeout)
        access.resumes.hold()
        self._open_doors()

    def _make_processes(self, own: tuple[str, ...]) -> None:
        settings, service = self.settings, self.access.service
        self.output = ExtensionOutput()
        self._workers = WorkerHost(service, self.output, self._recorder, self.confinement.observe, self.shadows)
        orders = LaunchRequests(
            PathRights(service, self._own_places, self.shadows.compare),
            home_of=settings.data_of,
            longest=self.confinement.longest,
            approved=self.confinement.approvals.of_caller,
        )
        self.children = ChildService(orders, self.confinement.launcher)
        protected = (*settings.protected, *own)
        self._isolated = IsolatedWorkers(settings, self._workers, protected, self.confinement, self.children.stop_of)

    def _make_runtimes(self, models: Mapping[str, Model] | None, own: tuple[str, ...]) -> None:
        settings, service = self.settings, self.access.service
        self._declarations = Declarations()
        self.modules = ModuleRuntime(settings, self.registry, self._declarations)
        started = self.modules.started
        self.tasks = TaskRuntime(self.store, self.modules.call, node=self.access.bus.node, started=started)
        self._task_service = TaskService(self.tasks)
        self.engines = self._installed(ManifestKind.ENGINE, own)
        self.extractors = self._installed(ManifestKind.EXTRACTOR, own)
        self.ai = AiRuntime(
            models,
            activate=lambda name, caller: self.modules.loaded(name).activation.guard(caller),
            apart=self._apart,
            started=started,
            elsewhere=lambda name: self.modules.is_awaited(name.rpartition(".")[0]),
        )
        self._shared_calls = SharedCalls(self.ai, lambda name: self.modules.loaded(name).activation)
        self.mcp = McpRuntime(self.store, service, McpSettings(approval=settings.mcp_approval))
        self.media = Media(service, data_dir=settings.data_dir, shadows=self.shadows)

    async def start(self) -> None:
        """Import the modules, each under its guard, and begin to serve. A broken module is listed; the others run."""
        if self.settings.capture_output:
            divert_output()
        self._undo_reports = watch_reports(asyncio.get_running_loop())
        self.confinement.follow(self.store, self._endpoints)
        self.children.open()
        self.mcp.promises.open()
        self.media.open()
        self._task_service.promises.open()
        self._shared_calls.promises.open()
        await self.engines.recover()
        await self.extractors.recover()
        await asyncio.to_thread(self.modules.load_all, NOBODY)
        for module in self.modules.all_loaded():
            self._take_over(module)
        self._link()
        self._isolated.start()
        await self.modules.start_isolated(self._isolated, self._take_over, self._link)
        await asyncio.to_thread(self.shadows.refresh)
        await self.tasks.start()
        self.access.node.on_change(self._changed)
        self.access.node.add_chore(self.shadows.chore)
        self._resumes.open()
        self._serving = asyncio.get_running_loop().create_task(self._serve_resumes())

    def _link(self) -> None:
        """Resolve the names that tools, agents and pipelines use; an unknown one breaks its module."""
        for name, problems in self.ai.link().items():
            if name:
                self.modules.break_module(name, problems)

    async def _serve_resumes(self) -> None:
        """Run resume actions as soon as all modules have declared theirs."""
        await self.modules.all_started()
        self.access.resumes.serve(self._resumes)

    async def stop(self) -> None:
        """Stop everything that runs, and wait for it."""
        self._serving.cancel()
        # Resume actions run on this loop, so wait for them while the loop still runs.
        await asyncio.to_thread(self.access.resumes.hold, _RESUMED_WITHIN)
        self._undo_reports()
        await self.tasks.stop()
        await self.engines.stop()
        await self.extractors.stop()
        await self.modules.stop()
        await self._isolated.stop()
        await asyncio.to_thread(self.children.close)
        self.media.close()
        await asyncio.to_thread(self.shadows.flush)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def installed(self, kind: ManifestKind) -> InstalledRuntime | None:
        """Return the runtime of engines or extractors; None for modules."""
        return {ManifestKind.ENGINE: self.engines, ManifestKind.EXTRACTOR: self.extractors}.get(kind)

    @property
    def extensions(self) -> tuple[RegisteredExtension, ...]:
        """All extensions, including broken ones with their problems."""
        return (*self.modules.extensions.values(), *self.registry.engines.values(), *self.registry.extractors.values())

    def _installed(self, kind: ManifestKind, protected: tuple[str, ...]) -> InstalledRuntime:
        return InstalledRuntime(
            kind,
            self.settings,
            self.registry,
            self._workers,
            configuration=self.store.settings,
            decider=self.access.service,
            confinement=self.confinement,
            protected=protected,
        )

    @property
    def limits_reached(self) -> Mapping[tuple[str, str], int]:
        """Number of calls that failed because of a limit, by subject and limit."""
        return self._workers.limits_reached

    @property
    def worker_events(self) -> Mapping[tuple[str, str], int]:
        """Number of changes of worker processes, by subject and event."""
        return {**self._isolated.events, **self.engines.worker_events, **self.extractors.worker_events}

    def _open_doors(self) -> None:
        everywhere: dict[str, Any] = {
            **self._task_service.services(),
            **EngineServices(self.engines, self.extractors).services(),
            **MediaServices(self.media).services(),
            **mcp_services(self.mcp),
            **self.children.services(),
            **self._shared_calls.services(),
            "access.manage": AccessManagers(self.access, self.access.settings.managers).manage,
        }
        apart: dict[str, Any] = {
            "ai.complete": self._shared_calls.complete,
            "children.start": self.children.start_apart,
        }
        self._workers.serve({**everywhere, **apart})
        here: dict[str, Any] = {
            "declare": self._declarations.declare,
            "request": _request,
            "places": self._places,
            "output.write": self.output.write,
            "ai.entrance": self.ai.entrance,
        }
        sdk_services.install({**everywhere, **here}, recorder=self._recorder)

    def _take_over(self, module: LoadedModule) -> None:
        """Register the tasks, tools, agents and pipelines of a module; a problem with one of them breaks the module."""
        name, manifest = module.extension.name, module.extension.manifest
        if not isinstance(manifest, ModuleManifest):
            return
        own = self._own_rules(module.extension.subject)
        try:
            if module.worker is not None:
                told = [item for item in module.surfaces.values() if not isinstance(item, Surface)]
                self.ai.declare_in_worker(manifest, told, own, module.worker)
            for surface in module.surfaces.values():
                if surface.kind == "task":
                    self.tasks.declare(name, surface.name, **surface.options)
            self.ai.declare(manifest, [item for item in module.surfaces.values() if isinstance(item, Surface)], own)
        except policy.InvalidInputError as error:
            self.modules.break_module(name, error.problems)

    def _apart(self, asset: Asset) -> Body | None:
        """Return the replacement for a function in the worker of its module, or of a single tool."""
        if asset.worker is not None:
            return self._shared_calls.body(asset, asset.worker)
        declaration, found = asset.declaration, self.registry.modules.get(asset.module or "")
        manifest = None if found is None else found.manifest
        if found is None or not isinstance(declaration, ToolDeclaration) or not isinstance(manifest, ModuleManifest):
            return None
        if not self.settings.is_isolated(declaration.subject):
            return None
        return self._shared_calls.body(asset, self._isolated.of_tool(found, manifest, declaration))

    def _own_rules(self, subject: policy.Subject) -> tuple[policy.AccessRule, ...]:
        """Return the rules for a module's own folders: read its code, read and write its data."""
        code, data = self._own_places(subject)
        read = (rule for rule in policy.rules_for_paths([code]) if rule.operation == policy.Operation.READ)
        return (*read, *policy.rules_for_paths([data]))

    def _changed(self) -> None:
        """Make all guards ask again, here and in the workers, after a decision changed."""
        access_changed()
        self.engines.access_changed()
        self.extractors.access_changed()
        self._isolated.access_changed()
        self.shadows.changed()

    def _hold_against(self, subject: policy.Subject, candidate: str | None) -> str:
        """Compare all processes of a subject with a candidate manifest, or with none; return its rules as JSON."""
        extension = self.registry.find(str(subject))
        if extension is None:
            return ""
        folder, kind, name = extension.folder, extension.kind, extension.name
        manifest = None if candidate is None else parse_manifest(candidate, kind, folder=folder, name=name)
        runtime = self.installed(kind)
        if runtime is not None:
            rules = runtime.hold_against(name, manifest)
        else:
            module = manifest if isinstance(manifest, ModuleManifest) else None
            self.modules.hold_against(name, module)
            rules = self._isolated.hold_against(name, module)
        return policy.rules_to_json((*policy.rules_from_json(rules), *self._own_rules(subject))) if rules else ""

    def _own_places(self, subject: policy.Subject) -> tuple[str, ...]:
        found = self.registry.find(str(subject))
        return () if found is None else (found.folder, self.settings.data_of(subject))

    def _places(self, view: RawView | None) -> tuple[str, str]:
        """Return the data folder and the code folder of the extension whose code calls."""
        for label in reversed(view.labels if view else ()):
            asset = self.ai.asset(label)
            found = self.registry.find(label if asset is None or asset.module is None else f"module:{asset.module}")
            if found is not None:
                return self.settings.data_of(found.subject), found.folder
        return "", ""


def _request(view: RawView | None) -> tuple[Any, ...]:
    del view
    caller = served()
    return tuple(caller) if type(caller) is Caller else ("",) * len(Caller._fields)
