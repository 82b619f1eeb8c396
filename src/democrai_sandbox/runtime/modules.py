"""Modules: render, actions and commands, each call under the module's guard."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import CallTimeout, ExtensionUnknown
from democrai_sandbox.manifests import ManifestKind, ModuleManifest, Section
from democrai_sandbox.policy import Problem, SandboxError, nearest

from .activation import Activation
from .calls import check_params, run_surface
from .hidden import hidden
from .import_failures import capture_import
from .loading import Surface, import_entry, prepare
from .outcomes import release
from .settings import Isolation
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.policy import SubjectChain

    from .extensions import Extension, Registry
    from .isolation import Workers
    from .loading import Declarations
    from .settings import RuntimeSettings
    from .worker.interface import SurfaceInfo
    from .worker.pool import Worker

RENDER = "render"
ACTION = "action"
COMMAND = "command"


class LoadedModule(NamedTuple):
    """A module whose code is loaded, here or in a worker."""

    extension: Extension
    activation: Activation
    surfaces: Mapping[tuple[str, str], Surface | SurfaceInfo]
    threads: Threads
    worker: Worker | None = None

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
        self._found: dict[str, Extension] = dict(registry.modules)
        self._loaded: dict[str, LoadedModule] = {}

    @property
    def extensions(self) -> Mapping[str, Extension]:
        """All modules, including broken ones with their problems."""
        return dict(self._found)

    def load_all(self, nobody: Caller) -> None:
        """Import every sound module that is not isolated, each under its guard."""
        for name, extension in list(self._found.items()):
            if not extension.is_broken and not self._is_isolated(extension):
                self._load(name, extension, nobody)

    async def start_isolated(self, workers: Workers) -> None:
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

    def _is_isolated(self, extension: Extension) -> bool:
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
        if not isinstance(surface, Surface) or module.worker is not None:
            return await _worker_of(module).call(
                kind, operation, given, caller=caller, ancestors=tuple(map(str, ancestors)), timeout=limit
            )
        activation = module.activation.below(ancestors) if ancestors else module.activation
        return await run_surface(
            surface, given, guard=activation.guard(caller), caller=caller, threads=module.threads, seconds=limit
        )

    def stop(self) -> None:
        """Stop the threads."""
        for module in self._loaded.values():
            module.threads.stop()

    def _load(self, name: str, extension: Extension, nobody: Caller) -> None:
        try:
            activation = module_activation(extension, self._settings)
            surfaces = self._import(extension, activation, nobody)
        except SandboxError as error:
            self._found[name] = extension.broken(Problem("", error.diagnostics()))
            return
        self._accept(extension, activation, {(surface.kind, surface.name): surface for surface in surfaces})

    def _accept(
        self,
        extension: Extension,
        activation: Activation,
        surfaces: Mapping[tuple[str, str], Surface | SurfaceInfo],
        worker: Worker | None = None,
    ) -> None:
        name = extension.name
        for surface in surfaces.values():
            if surface.is_stream:
                what = f"{surface.kind} {surface.name!r} yields; functions of a module must return"
                self._found[name] = extension.broken(Problem("", what))
                return
        threads = Threads(self._settings.threads_per_subject, f"module-{name}")
        self._loaded[name] = LoadedModule(extension, activation, surfaces, threads, worker)

    def _import(self, extension: Extension, activation: Activation, nobody: Caller) -> tuple[Surface, ...]:
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


def _worker_of(module: LoadedModule) -> Worker:
    if module.worker is None:
        raise ExtensionUnknown(f"module {module.extension.name!r} has no worker")
    return module.worker


def module_activation(extension: Extension, settings: RuntimeSettings) -> Activation:
    """Return the activation of a module: its declarations, its folder to read, its data to read and write."""
    manifest = extension.manifest
    if not isinstance(manifest, ModuleManifest) or extension.kind is not ManifestKind.MODULE:
        raise TypeError("expected a module")
    data = settings.data_of(extension.subject)
    Path(data).mkdir(mode=0o700, parents=True, exist_ok=True)
    return Activation(extension.subject, _section(manifest), own_read=(extension.folder,), own_write=(data,))


def _section(manifest: ModuleManifest) -> Section:
    return Section(access=manifest.access, allowed_imports=manifest.allowed_imports)
