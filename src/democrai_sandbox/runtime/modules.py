"""Modules: render, actions and commands, each call under the guard of the module, in this process or in a worker."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import CallTimeout, ExtensionUnknown
from democrai_sandbox.manifests import ManifestKind, ModuleManifest, Section
from democrai_sandbox.policy import Problem, SandboxError, nearest, rules_to_json
from democrai_sandbox.runtime.calls.guard_factory import GuardFactory
from democrai_sandbox.runtime.calls.invocation import check_params, run_surface
from democrai_sandbox.runtime.calls.outcome import release
from democrai_sandbox.runtime.calls.threads import SubjectThreads
from democrai_sandbox.runtime.extensions.importer import Surface, capture_import, import_entry, prepare
from democrai_sandbox.runtime.extensions.settings import Isolation
from democrai_sandbox.runtime.worker.handle import WorkerHandle
from democrai_sandbox.runtime.worker.process import WorkerSpec

from .child_process import BASE_INTERPRETER, PREFIX
from .sdk_services import hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.manifests import ToolDeclaration
    from democrai_sandbox.policy import Subject, SubjectChain
    from democrai_sandbox.runtime.confinement.confinement import Confinement
    from democrai_sandbox.runtime.extensions.importer import Declarations
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, Registry
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.worker.process import SurfaceInfo, WorkerHostServices

RENDER = "render"
ACTION = "action"
COMMAND = "command"


class LoadedModule(NamedTuple):
    """A module whose code is loaded, here or in a worker."""

    extension: RegisteredExtension
    activation: GuardFactory
    surfaces: Mapping[tuple[str, str], Surface | SurfaceInfo]
    threads: SubjectThreads
    worker: WorkerHandle | None = None

    def surface(self, kind: str, name: str) -> Surface | SurfaceInfo:
        """Return one of its functions; the error for an unknown name suggests the nearest one."""
        found = self.surfaces.get((kind, name))
        if found is not None:
            return found
        close = nearest(name, [other for of_kind, other in self.surfaces if of_kind == kind])
        hint = f"; did you mean {close!r}?" if close else ""
        raise ExtensionUnknown(f"module {self.extension.name} has no {kind} {name!r}{hint}")


class ModuleRuntime:
    """Loads modules and calls them. One broken module never stops another."""

    def __init__(self, settings: RuntimeSettings, registry: Registry, declarations: Declarations) -> None:
        """Take the registered modules; nothing is imported yet."""
        self._settings = settings
        self._declarations = declarations
        self._found: dict[str, RegisteredExtension] = dict(registry.modules)
        self._loaded: dict[str, LoadedModule] = {}

    @property
    def extensions(self) -> Mapping[str, RegisteredExtension]:
        """All modules, including broken ones with their problems."""
        return dict(self._found)

    def load_all(self, nobody: Caller) -> None:
        """Import every sound module that is not isolated, each under its guard."""
        for name, extension in list(self._found.items()):
            if not extension.is_broken and not self._is_isolated(extension):
                self._load(name, extension, nobody)

    async def start_isolated(self, workers: IsolatedWorkers) -> None:
        """Start the workers of isolated modules, which import their module there."""
        for name, extension in list(self._found.items()):
            manifest = extension.manifest
            if extension.is_broken or not self._is_isolated(extension) or not isinstance(manifest, ModuleManifest):
                continue
            worker = workers.of_module(extension, manifest)
            try:
                surfaces = await worker.start()
                self._accept(extension, module_activation(extension, self._settings), surfaces, worker)
            except SandboxError as error:
                self._found[name] = extension.broken(Problem("", error.diagnostics()))

    def _is_isolated(self, extension: RegisteredExtension) -> bool:
        return self._settings.isolation_of(extension.subject) is Isolation.PROCESS

    def loaded(self, name: str) -> LoadedModule:
        """Return a loaded module; raise its problems, or an error for an unknown name."""
        found = self._loaded.get(name)
        if found is not None:
            return found
        extension = self._found.get(name)
        if extension is None:
            close = nearest(name, self._found)
            raise ExtensionUnknown(f"unknown module {name!r}" + (f"; did you mean {close!r}?" if close else ""))
        extension.require_sound()
        raise ExtensionUnknown(f"module {name!r} is not loaded")

    def all_loaded(self) -> Iterable[LoadedModule]:
        """Return the loaded modules."""
        return tuple(self._loaded.values())

    def hold_against(self, name: str, candidate: ModuleManifest | None) -> None:
        """Compare a module in this process with a candidate; modules in workers are not affected."""
        found = self._loaded.get(name)
        if found is not None and found.worker is None:
            found.activation.held_against(None if candidate is None else _section(candidate))

    def break_module(self, name: str, problems: Iterable[Problem]) -> None:
        """Take a module out of service because of problems found after its import."""
        self._loaded.pop(name, None)
        self._found[name] = self._found[name].broken(*problems)

    async def render(self, name: str, params: dict[str, Any], caller: Caller) -> Any:
        """Return the rendered output of a module."""
        return await self.call(name, RENDER, RENDER, params, caller)

    async def action(self, name: str, action: str, params: dict[str, Any], caller: Caller) -> Any:
        """Run an action of a module for a user."""
        return await self.call(name, ACTION, action, params, caller)

    async def command(self, name: str, command: str, params: dict[str, Any], caller: Caller) -> Any:
        """Run a command of a module."""
        return await self.call(name, COMMAND, command, params, caller)

    async def call(
        self,
        name: str,
        kind: str,
        operation: str,
        params: dict[str, Any],
        caller: Caller,
        *,
        seconds: float | None = None,
        ancestors: SubjectChain = (),
    ) -> Any:
        """Call a function of a module on behalf of ``caller``, with a timeout. Plain data goes in and comes out."""
        module = self.loaded(name)
        surface = module.surface(kind, operation)
        given = check_params(params)
        limit = self._settings.call_timeout if seconds is None else seconds
        if module.worker is not None:
            return await module.worker.call(
                kind, operation, given, caller=caller, ancestors=tuple(map(str, ancestors)), timeout=limit
            )
        if not isinstance(surface, Surface):
            raise ExtensionUnknown(f"module {name!r} has no worker")
        activation = module.activation.below(ancestors) if ancestors else module.activation
        return await run_surface(
            surface, given, guard=activation.guard(caller), caller=caller, threads=module.threads, seconds=limit
        )

    def stop(self) -> None:
        """Stop the threads."""
        for module in self._loaded.values():
            module.threads.stop()

    def _load(self, name: str, extension: RegisteredExtension, nobody: Caller) -> None:
        try:
            activation = module_activation(extension, self._settings)
            surfaces = self._import(extension, activation, nobody)
        except SandboxError as error:
            self._found[name] = extension.broken(Problem("", error.diagnostics()))
            return
        self._accept(extension, activation, {(surface.kind, surface.name): surface for surface in surfaces})

    def _accept(
        self,
        extension: RegisteredExtension,
        activation: GuardFactory,
        surfaces: Mapping[tuple[str, str], Surface | SurfaceInfo],
        worker: WorkerHandle | None = None,
    ) -> None:
        name = extension.name
        for surface in surfaces.values():
            if surface.is_stream:
                what = f"{surface.kind} {surface.name!r} yields; functions of a module must return"
                self._found[name] = extension.broken(Problem("", what))
                return
        threads = SubjectThreads(self._settings.threads_per_subject, f"module-{name}")
        self._loaded[name] = LoadedModule(extension, activation, surfaces, threads, worker)

    def _import(self, extension: RegisteredExtension, activation: GuardFactory, nobody: Caller) -> tuple[Surface, ...]:
        """Import under the guard, in a separate thread that can be abandoned."""
        package = prepare(extension.kind, extension.name, extension.folder)
        entry = os.path.relpath(extension.entry, extension.folder)
        label = str(extension.subject)
        outcome: list[Any] = []

        def work() -> None:
            outcome.append(activation.guard(nobody).run(capture_import, import_entry, package, entry, extension.folder))

        self._declarations.begin(label)
        thread = threading.Thread(target=hidden(work), name=f"load-{label}", daemon=True)
        thread.start()
        thread.join(self._settings.load_timeout)
        surfaces = self._declarations.end(label)
        if thread.is_alive():
            raise CallTimeout(f"the import did not finish within {self._settings.load_timeout:g} s")
        release(outcome[0])
        return surfaces


def module_activation(extension: RegisteredExtension, settings: RuntimeSettings) -> GuardFactory:
    """Return the activation of a module: its declarations, its folder to read, its data to read and write."""
    manifest = extension.manifest
    if not isinstance(manifest, ModuleManifest) or extension.kind is not ManifestKind.MODULE:
        raise TypeError("expected a module")
    data = settings.data_of(extension.subject)
    Path(data).mkdir(mode=0o700, parents=True, exist_ok=True)
    return GuardFactory(extension.subject, _section(manifest), own_read=(extension.folder,), own_write=(data,))


def _section(manifest: ModuleManifest) -> Section:
    return Section(access=manifest.access, allowed_imports=manifest.allowed_imports)


class IsolatedWorkers:
    """Workers of isolated modules and tools. Engines and extractors always run in workers, managed separately."""

    def __init__(
        self,
        settings: RuntimeSettings,
        host: WorkerHostServices,
        *,
        protected: tuple[str, ...],
        on_end: Callable[[str], None],
        confinement: Confinement,
    ) -> None:
        """Take the paths that are protected from all subjects, as in this process.

        ``on_end`` receives the label of a subject whose process has ended, so that the host can stop work for it.
        """
        self._settings = settings
        self._host = host
        self._protected = protected
        self._confinement = confinement
        self._on_end = on_end
        self._workers: dict[str, WorkerHandle] = {}
        self._of_modules: dict[str, list[WorkerHandle]] = defaultdict(list)
        """Workers under the declarations of a module, by module name: its own, and those of tools without an ``access``
        list.
        """

    def of_module(self, extension: RegisteredExtension, manifest: ModuleManifest) -> WorkerHandle:
        """Return the worker of a module; it starts on first use."""
        return self._worker(extension, manifest, extension.subject, manifest)

    def of_tool(
        self, extension: RegisteredExtension, manifest: ModuleManifest, declaration: ToolDeclaration
    ) -> WorkerHandle:
        """Return the worker of one tool: with its own declarations, or with those of the module if it has none.

        The worker imports the module's code, so it can read the folder. Only a tool without declarations can use the
        module's data.
        """
        declared = manifest if declaration.access is None else declaration
        return self._worker(extension, manifest, declaration.subject, declared)

    def _worker(
        self,
        extension: RegisteredExtension,
        manifest: ModuleManifest,
        subject: Subject,
        declared: ModuleManifest | ToolDeclaration,
    ) -> WorkerHandle:
        data = self._settings.data_of(extension.subject)
        Path(data).mkdir(mode=0o700, parents=True, exist_ok=True)
        spec = WorkerSpec(
            kind=subject.kind.value,
            name=subject.name,
            folder=extension.folder,
            # With the host's packages: isolation does not change which packages a module may import.
            interpreter=BASE_INTERPRETER,
            environment=PREFIX,
            entry=manifest.entry,
            data_dir=data,
            access=rules_to_json(declared.access or ()),
            allowed_imports=declared.allowed_imports,
            own_read=(extension.folder,),
            own_write=(data,) if declared is manifest else (),
            protected=self._protected,
            native_packages=self._settings.native_packages,
            threads=self._settings.threads_per_subject,
            start_timeout=self._settings.load_timeout,
            call_timeout=self._settings.call_timeout,
        )
        confined, starter, rights = self._confinement.worker(extension, spec)
        worker = WorkerHandle(confined, self._host, starter=starter, on_end=self._on_end, rights=rights)
        self._workers[spec.label] = worker
        if declared is manifest:
            self._of_modules[manifest.name].append(worker)
        return worker

    def hold_against(self, module: str, candidate: ModuleManifest | None) -> None:
        """Compare all workers under a module's declarations with a candidate. Thread-safe."""
        access = "" if candidate is None else rules_to_json(candidate.access)
        imports = () if candidate is None else candidate.allowed_imports
        for worker in tuple(self._of_modules[module]):
            worker.hold_against(access, imports)

    def access_changed(self) -> None:
        """Make the guards in the workers ask again. Thread-safe."""
        for worker in tuple(self._workers.values()):
            worker.access_changed()

    async def stop(self) -> None:
        """Stop all workers."""
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            await worker.stop()
