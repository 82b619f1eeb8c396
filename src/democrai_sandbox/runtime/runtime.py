"""Composition of all runtimes: created once before the first guard, started when the store is ready."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from democrai_sandbox.access.caller import Caller
from democrai_sandbox.guard import access_changed, configure_guard, served
from democrai_sandbox.guard.interface import RawView
from democrai_sandbox.manifests import ManifestKind, ModuleManifest, ToolDeclaration, parse_manifest
from democrai_sandbox.policy import InvalidInputError, Operation, rules_for_paths, rules_from_json, rules_to_json
from democrai_sandbox.runtime.ai.runtime import AiRuntime, IsolatedTools
from democrai_sandbox.runtime.calls.output import ExtensionOutput, divert_output, watch_reports
from democrai_sandbox.runtime.confinement.confinement import Confinement
from democrai_sandbox.runtime.extensions.importer import Declarations, Surface, preload
from democrai_sandbox.runtime.extensions.registry import discover
from democrai_sandbox.runtime.extensions.shadow_runs import ShadowRuns
from democrai_sandbox.runtime.mcp.runtime import services as mcp_services
from democrai_sandbox.runtime.media.service import Media, MediaServices

from . import sdk_services
from .approval_actions import AccessManagers, ModuleResumes, as_asked
from .children import ChildService, PathRights
from .engines import EngineServices, InstalledRuntime
from .mcp import McpRuntime, McpSettings
from .modules import IsolatedWorkers, ModuleRuntime
from .store import Configured, RuntimeStore
from .task_runtime import TaskRuntime, TaskService

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Self

    from democrai_sandbox.access import Access
    from democrai_sandbox.access.values import Requester
    from democrai_sandbox.errors import SandboxDenied
    from democrai_sandbox.guard import AccessQuestion, Decider, DenialRecorder, EndpointObserver
    from democrai_sandbox.kernel.application import Kernel
    from democrai_sandbox.policy import AccessDecision, AccessRule, Subject
    from democrai_sandbox.runtime.ai.asset_calls import Body
    from democrai_sandbox.runtime.ai.assets import Asset
    from democrai_sandbox.runtime.ai.model import Model
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.worker.process import ConnectionReport

    from .modules import LoadedModule

_log = logging.getLogger(__name__)


class WorkerHost:
    """Answers workers. Their statements about themselves have already been checked against the host's knowledge."""

    def __init__(
        self,
        decider: Decider,
        output: ExtensionOutput,
        recorder: DenialRecorder | None,
        observe: Callable[[ConnectionReport], None],
        shadows: ShadowRuns,
    ) -> None:
        """Decide as for this process, and store the output of workers with all other output.

        ``shadows`` records where candidates would decide differently.
        """
        self._shadows = shadows
        self.observe = observe
        """Permits a connection of a worker in the kernel layer."""
        self._decider = decider
        self._output = output
        self._recorder = recorder
        self._services: dict[str, Callable[..., Any]] = {}
        self.limits_reached: Counter[tuple[str, str]] = Counter()
        """Calls that failed because of a limit, by subject and limit."""

    def serve(self, services: Mapping[str, Callable[..., Any]]) -> None:
        """Offer services to workers, as for code in this process."""
        self._services.update(services)

    @property
    def services(self) -> Sequence[str]:
        """Names that ``door`` accepts."""
        return tuple(self._services)

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Answer an access question from the guard of a worker."""
        return self._decider.decide(question)

    def door(self, name: str, view: tuple[Any, ...], args: Sequence[Any]) -> Any:
        """Call a service for the code in a worker."""
        service = self._services.get(name)
        if service is None:
            raise InvalidInputError.of(f"service {name} is not available in workers")
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
        if self._recorder is not None:
            try:
                self._recorder.record(denial)
            except Exception:  # noqa: BLE001 - a failing recorder must not change the denial
                _log.exception("the denial recorder failed")


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
        self._resumes = ModuleResumes(self.modules, self.tasks, requester=requester, timeout=settings.call_timeout)
        access.resumes.hold()
        self._open_doors()

    def _make_processes(self, own: tuple[str, ...]) -> None:
        settings, service = self.settings, self.access.service
        self.output = ExtensionOutput()
        self._workers = WorkerHost(service, self.output, self._recorder, self.confinement.observe, self.shadows)
        self.children = ChildService(
            PathRights(service, owned=self._own_places, shadows=self.shadows),
            launcher=self.confinement.launcher,
            home_of=settings.data_of,
            longest=self.confinement.longest,
            approved=self.confinement.approvals.of_caller,
        )
        self._isolated = IsolatedWorkers(
            settings,
            self._workers,
            protected=(*settings.protected, *own),
            on_end=self.children.stop_of,
            confinement=self.confinement,
        )

    def _make_runtimes(self, models: Mapping[str, Model] | None, own: tuple[str, ...]) -> None:
        settings, service = self.settings, self.access.service
        self._declarations = Declarations()
        self.modules = ModuleRuntime(settings, self.registry, self._declarations)
        started = self.modules.started
        self.tasks = TaskRuntime(self.store, self.modules.call, node=self.access.bus.node, started=started)
        self._task_service = TaskService(self.tasks)
        self.engines = self._installed(ManifestKind.ENGINE, own)
        self.extractors = self._installed(ManifestKind.EXTRACTOR, own)
        self._tooling = IsolatedTools()
        self.ai = AiRuntime(
            models,
            activate=lambda name, caller: self.modules.loaded(name).activation.guard(caller),
            apart=self._apart,
            started=started,
        )
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
        self._tooling.promises.open()
        self.ai.elsewhere.promises.open()
        await self.engines.recover()
        await self.extractors.recover()
        await asyncio.to_thread(self.modules.load_all, NOBODY)
        for module in self.modules.all_loaded():
            self._take_over(module)
        for name, problems in self.ai.link().items():
            if name:
                self.modules.break_module(name, problems)
        self._isolated.start()
        await self.modules.start_isolated(self._isolated, self._take_over)
        await asyncio.to_thread(self.shadows.refresh)
        await self.tasks.start()
        self.access.node.on_change(self._changed)
        self.access.node.add_chore(self.shadows.chore)
        self._resumes.open()
        self._serving = asyncio.get_running_loop().create_task(self._serve_resumes())

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

    def _open_doors(self) -> None:
        everywhere: dict[str, Any] = {
            **self._task_service.services(),
            **EngineServices(self.engines, self.extractors).services(),
            **MediaServices(self.media).services(),
            **mcp_services(self.mcp),
            **self.children.services(),
            "access.manage": AccessManagers(self.access, self.access.settings.managers).manage,
        }
        apart: dict[str, Any] = {"ai.complete": self.ai.elsewhere.complete, "children.start": self.children.start_apart}
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
                self.ai.elsewhere.declare(manifest, told, own, module.worker)
            for surface in module.surfaces.values():
                if surface.kind == "task":
                    self.tasks.declare(name, surface.name, **surface.options)
            self.ai.declare(manifest, [item for item in module.surfaces.values() if isinstance(item, Surface)], own)
        except InvalidInputError as error:
            self.modules.break_module(name, error.problems)

    def _apart(self, asset: Asset) -> Body | None:
        """Return the replacement for a tool's function if the host runs the tool in a worker."""
        declaration, found = asset.declaration, self.registry.modules.get(asset.module or "")
        manifest = None if found is None else found.manifest
        if found is None or not isinstance(declaration, ToolDeclaration) or not isinstance(manifest, ModuleManifest):
            return None
        if not self.settings.is_isolated(declaration.subject):
            return None
        return self._tooling.body(asset, self._isolated.of_tool(found, manifest, declaration))

    def _own_rules(self, subject: Subject) -> tuple[AccessRule, ...]:
        """Return the rules for a module's own folders: read its code, read and write its data."""
        code, data = self._own_places(subject)
        read = (rule for rule in rules_for_paths([code]) if rule.operation == Operation.READ)
        return (*read, *rules_for_paths([data]))

    def _changed(self) -> None:
        """Make all guards ask again, here and in the workers, after a decision changed."""
        access_changed()
        self.engines.access_changed()
        self.extractors.access_changed()
        self._isolated.access_changed()
        self.shadows.changed()

    def _hold_against(self, subject: Subject, candidate: str | None) -> str:
        """Start a shadow run of a subject with a candidate manifest, in all its processes; None ends it.

        Return the rules of the candidate as JSON; empty without a candidate.
        """
        extension = self.registry.find(str(subject))
        if extension is None:
            return ""
        folder, kind, name = extension.folder, extension.kind, extension.name
        if kind is ManifestKind.MODULE:
            module = None if candidate is None else parse_manifest(candidate, ModuleManifest, folder=folder, name=name)
            self.modules.hold_against(extension.name, module)
            self._isolated.hold_against(extension.name, module)
            return "" if module is None else rules_to_json((*module.access, *self._own_rules(subject)))
        manifest = None if candidate is None else parse_manifest(candidate, kind, folder=folder, name=name)
        runtime = self.engines if kind is ManifestKind.ENGINE else self.extractors
        rules = runtime.hold_against(extension.name, manifest)
        return rules_to_json((*rules_from_json(rules), *self._own_rules(subject))) if rules else ""

    def _own_places(self, subject: Subject) -> tuple[str, ...]:
        found = self.registry.find(str(subject))
        return () if found is None else (found.folder, self.settings.data_of(subject))

    def _places(self, view: RawView | None) -> tuple[str, str]:
        """Return the data folder and the code folder of the calling extension."""
        for label in reversed(view.labels if view else ()):
            found = self.registry.find(label)
            if found is not None:
                return self.settings.data_of(found.subject), found.folder
        return "", ""


def _request(view: RawView | None) -> tuple[Any, ...]:
    del view
    caller = served()
    return tuple(caller) if type(caller) is Caller else ("",) * len(Caller._fields)
