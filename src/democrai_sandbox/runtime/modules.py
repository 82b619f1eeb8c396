"""Modules: render, actions and commands, each call under the guard of the module, in this process or in a worker."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import CallTimeout, ExtensionUnknown, SpawnFailed
from democrai_sandbox.manifests import ManifestKind, ModuleManifest, ToolDeclaration
from democrai_sandbox.policy import Problem, SandboxError, Subject, SubjectChain, hint_for, rules_to_json
from democrai_sandbox.runtime.calls.invocation import GuardFactory, SubjectThreads, check_params, run_surface
from democrai_sandbox.runtime.calls.outcome import release
from democrai_sandbox.runtime.extensions.importer import Declarations, Surface, capture_import, import_entry, prepare
from democrai_sandbox.runtime.worker.process import SurfaceInfo, WorkerHostServices, WorkerSpec

from .child_process import BASE_INTERPRETER, PREFIX
from .sdk_services import hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from democrai_sandbox.access.caller import Caller
    from democrai_sandbox.runtime.confinement.confinement import Confinement
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension, Registry
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
    from democrai_sandbox.runtime.worker.handle import WorkerHandle

_BOOT_SECONDS = 2.0
"""Seconds for which the start of the runtime waits for the workers of modules; later ones continue in parallel."""
_STARTS = 2 * (os.cpu_count() or 2)
"""Workers that start at the same time during the start of the runtime."""
_TIDY_SECONDS = 5.0
_LEAST_IDLE_SECONDS = 10.0
"""Seconds for which an idle worker is kept even if there are many."""
_BOOT_ATTEMPTS = 60
_BOOT_PAUSE = 1.0
"""Attempts to start a worker while the spawn server does not start it, and seconds between them."""
_LEAST_ROOM = 256 * 1024 * 1024
_PART_OF_ROOM = 50
"""Room on the disk of the data folder, in bytes and as a part of it, below which idle workers are stopped."""

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
        hint = hint_for(name, [other for of_kind, other in self.surfaces if of_kind == kind])
        raise ExtensionUnknown(f"module {self.extension.name} has no {kind} {name!r}{hint}")


class ModuleRuntime:
    """Loads modules and calls them. One broken module never stops another."""

    def __init__(self, settings: RuntimeSettings, registry: Registry, declarations: Declarations) -> None:
        self._settings = settings
        self._declarations = declarations
        self._found: dict[str, RegisteredExtension] = dict(registry.modules)
        self._loaded: dict[str, LoadedModule] = {}
        self._workers: dict[str, WorkerHandle] = {}
        """Workers of isolated modules that are not loaded yet."""
        self._starts: dict[str, asyncio.Task[None]] = {}
        self._take_over: Callable[[LoadedModule], None] = lambda _module: None
        self._complete: Callable[[], None] = lambda: None
        self._context = contextvars.copy_context()
        self._booting: asyncio.Task[None] | None = None

    @property
    def extensions(self) -> Mapping[str, RegisteredExtension]:
        """All modules, including broken ones with their problems."""
        return dict(self._found)

    def load_all(self, nobody: Caller) -> None:
        """Import every sound module that is not isolated, each under its guard."""
        for name, extension in list(self._found.items()):
            if not extension.is_broken and not self._is_isolated(extension):
                self._load(name, extension, nobody)

    async def start_isolated(
        self, workers: IsolatedWorkers, take_over: Callable[[LoadedModule], None], complete: Callable[[], None]
    ) -> None:
        """Start the workers of isolated modules in parallel, which import their module there.

        Return when all have started, or after a short while: the others continue, and a call to one starts it first.
        ``take_over`` receives each loaded module; ``complete`` is called when all are loaded or broken.
        """
        self._take_over, self._complete = take_over, complete
        for name, extension in self._found.items():
            manifest = extension.manifest
            if not extension.is_broken and self._is_isolated(extension) and isinstance(manifest, ModuleManifest):
                self._workers[name] = workers.of_module(extension, manifest)
        self._booting = asyncio.get_running_loop().create_task(self._boot(), context=self._context.copy())
        await asyncio.wait([self._booting], timeout=_BOOT_SECONDS)

    async def _boot(self) -> None:
        gate = asyncio.Semaphore(_STARTS)

        async def start(name: str) -> None:
            for _ in range(_BOOT_ATTEMPTS):
                async with gate:
                    with suppress(SpawnFailed):
                        await self.started(name)
                        return
                await asyncio.sleep(_BOOT_PAUSE)

        await asyncio.gather(*map(start, tuple(self._workers)))

    async def started(self, name: str) -> None:
        """Wait until an isolated module is loaded or broken; return immediately for all other names.

        Raise ``SpawnFailed`` if the spawn server did not start its worker; the next call tries it again.
        """
        if name not in self._workers:
            return
        task = self._starts.get(name)
        if task is None:
            loop = asyncio.get_running_loop()
            task = self._starts[name] = loop.create_task(self._start(name), context=self._context.copy())
        await asyncio.shield(task)

    async def all_started(self) -> None:
        """Wait until every isolated module is loaded or broken."""
        if self._booting is not None:
            await asyncio.shield(self._booting)

    async def _start(self, name: str) -> None:
        extension, worker, ended = self._found[name], self._workers[name], True
        try:
            surfaces = await worker.start()
            module = self._accept(extension, module_activation(extension, self._settings), surfaces, worker)
            if module is not None:
                self._take_over(module)
        except SpawnFailed:
            ended = False
            raise
        except SandboxError as error:
            self._found[name] = extension.broken(Problem("", error.diagnostics()))
        finally:
            self._starts.pop(name, None)
            if ended:
                self._workers.pop(name, None)
                if not self._workers:
                    self._complete()

    def _is_isolated(self, extension: RegisteredExtension) -> bool:
        return self._settings.is_isolated(extension.subject)

    def is_awaited(self, name: str) -> bool:
        """Return whether an isolated module will be loaded, or found broken."""
        found = self._found.get(name)
        return found is not None and not found.is_broken and name not in self._loaded and self._is_isolated(found)

    def loaded(self, name: str) -> LoadedModule:
        """Return a loaded module; raise its problems, or an error for an unknown name."""
        found = self._loaded.get(name)
        if found is not None:
            return found
        extension = self._found.get(name)
        if extension is None:
            raise ExtensionUnknown(f"unknown module {name!r}{hint_for(name, self._found)}")
        extension.require_sound()
        raise ExtensionUnknown(f"module {name!r} is not loaded")

    def all_loaded(self) -> Iterable[LoadedModule]:
        """Return the loaded modules."""
        return tuple(self._loaded.values())

    def hold_against(self, name: str, candidate: ModuleManifest | None) -> None:
        """Compare a module in this process with a candidate; modules in workers are not affected."""
        found = self._loaded.get(name)
        if found is not None and found.worker is None:
            found.activation.held_against(candidate)

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
        if name in self._workers:
            await self.started(name)
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

    async def stop(self) -> None:
        """Stop the start of workers, and the threads."""
        starts = [task for task in (self._booting, *self._starts.values()) if task is not None and not task.done()]
        for task in starts:
            task.cancel()
        if starts:
            await asyncio.wait(starts)
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
    ) -> LoadedModule | None:
        name = extension.name
        for surface in surfaces.values():
            if surface.is_stream:
                what = f"{surface.kind} {surface.name!r} yields; functions of a module must return"
                self._found[name] = extension.broken(Problem("", what))
                return None
        threads = SubjectThreads(self._settings.threads_per_subject, f"module-{name}")
        module = self._loaded[name] = LoadedModule(extension, activation, surfaces, threads, worker)
        return module

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


def _is_full(folder: str) -> bool:
    """Return whether the file system of a folder has almost no room left for this user."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    room = found.f_bavail * found.f_frsize
    return room < min(_LEAST_ROOM, found.f_blocks * found.f_frsize // _PART_OF_ROOM)


def module_activation(extension: RegisteredExtension, settings: RuntimeSettings) -> GuardFactory:
    """Return the activation of a module: its declarations, its folder to read, its data to read and write."""
    manifest = extension.manifest
    if not isinstance(manifest, ModuleManifest) or extension.kind is not ManifestKind.MODULE:
        raise TypeError("expected a module")
    data = settings.data_of(extension.subject)
    Path(data).mkdir(mode=0o700, parents=True, exist_ok=True)
    return GuardFactory(extension.subject, manifest, own_read=(extension.folder,), own_write=(data,))


@dataclass(eq=False, repr=False)
class IsolatedWorkers:
    """Workers of isolated modules and tools. Engines and extractors always run in workers, managed separately."""

    _settings: RuntimeSettings
    _host: WorkerHostServices
    _protected: tuple[str, ...]
    """Paths that are protected from all subjects, as in this process."""
    _confinement: Confinement
    _on_end: Callable[[str], None]
    """Receives the label of a subject whose process has ended, so that the host can stop work for it."""
    _workers: dict[str, WorkerHandle] = field(default_factory=dict)
    events: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Changes of worker processes, by label and event."""
    _tidying: asyncio.Task[None] | None = None
    _of_modules: dict[str, list[WorkerHandle]] = field(default_factory=lambda: defaultdict(list))
    """Workers by the module whose declarations they have: its own, and those of tools without an ``access`` list."""

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
        worker = self._confinement.worker(extension, spec, self._host, self.events, on_end=self._on_end)
        self._workers[spec.label] = worker
        if declared is manifest:
            self._of_modules[manifest.name].append(worker)
        return worker

    def hold_against(self, module: str, candidate: ModuleManifest | None) -> str:
        """Compare a module's workers with a candidate, or with none; return its rules as JSON. Thread-safe."""
        access = "" if candidate is None else rules_to_json(candidate.access)
        imports = () if candidate is None else candidate.allowed_imports
        for worker in tuple(self._of_modules[module]):
            worker.hold_against(access, imports)
        return access

    def access_changed(self) -> None:
        """Make the guards in the workers ask again. Thread-safe."""
        for worker in tuple(self._workers.values()):
            worker.access_changed()

    def start(self) -> None:
        """Stop idle workers from now on."""
        self._tidying = asyncio.get_running_loop().create_task(self._tidy())

    async def _tidy(self) -> None:
        settings, now = self._settings, asyncio.get_running_loop().time
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            idle = {worker: since for worker in self._workers.values() if (since := worker.idle_since) is not None}
            longest = sorted(idle, key=idle.__getitem__)
            # An idle worker may hold a large temp folder, which is removed with its process.
            warm = 0 if await asyncio.to_thread(_is_full, settings.data_dir) else settings.warm_workers
            surplus = longest[: max(0, len(idle) - warm)]
            for worker in longest:
                least = _LEAST_IDLE_SECONDS if worker in surplus else settings.worker_idle_seconds
                if now() - idle[worker] >= least:
                    worker.rest()

    async def stop(self) -> None:
        """Stop all workers."""
        if self._tidying is not None:
            self._tidying.cancel()
        workers, self._workers = self._workers, {}
        if workers:
            await asyncio.wait([asyncio.ensure_future(worker.stop()) for worker in workers.values()])
