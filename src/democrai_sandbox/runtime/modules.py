"""Modules: render, actions and commands, each call under the module's own guard."""

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
from .loading import Surface, import_entry, prepare
from .outcomes import capture, release
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.policy import SubjectChain

    from .extensions import Extension, Registry
    from .loading import Declarations
    from .settings import RuntimeSettings

RENDER = "render"
ACTION = "action"
COMMAND = "command"


class LoadedModule(NamedTuple):
    """A module whose code is in memory."""

    extension: Extension
    activation: Activation
    surfaces: Mapping[tuple[str, str], Surface]
    threads: Threads

    def surface(self, kind: str, name: str) -> Surface:
        """Return one of its functions; one that is not there is an error that names the nearest."""
        found = self.surfaces.get((kind, name))
        if found is not None:
            return found
        close = nearest(name, [other for of_kind, other in self.surfaces if of_kind == kind])
        hint = f"; did you mean {close!r}?" if close else ""
        raise ExtensionUnknown(f"module {self.extension.name} has no {kind} {name!r}{hint}")


class ModuleRuntime:
    """Loads modules and calls them. One broken module never stops another."""

    def __init__(self, settings: RuntimeSettings, registry: Registry, declarations: Declarations) -> None:
        """Take what was found; nothing is imported yet."""
        self._settings = settings
        self._declarations = declarations
        self._found: dict[str, Extension] = dict(registry.modules)
        self._loaded: dict[str, LoadedModule] = {}

    @property
    def extensions(self) -> Mapping[str, Extension]:
        """All modules, with what is wrong with those that are broken."""
        return dict(self._found)

    def load_all(self, nobody: Caller) -> None:
        """Import every module that is not broken, each under its guard."""
        for name, extension in list(self._found.items()):
            if not extension.is_broken:
                self._load(name, extension, nobody)

    def loaded(self, name: str) -> LoadedModule:
        """Return a module that can be called; raise what is wrong with it, or that there is none."""
        found = self._loaded.get(name)
        if found is not None:
            return found
        extension = self._found.get(name)
        if extension is None:
            close = nearest(name, self._found)
            raise ExtensionUnknown(f"there is no module {name!r}" + (f"; did you mean {close!r}?" if close else ""))
        extension.require_sound()
        raise ExtensionUnknown(f"module {name!r} is not loaded")

    def all_loaded(self) -> Iterable[LoadedModule]:
        """Return the modules that can be called."""
        return tuple(self._loaded.values())

    def break_module(self, name: str, problems: Iterable[Problem]) -> None:
        """Take a module out of service, because of what was found after it was imported."""
        self._loaded.pop(name, None)
        self._found[name] = self._found[name].broken(*problems)

    async def render(self, name: str, params: dict[str, Any], caller: Caller) -> Any:
        """Return what a module shows."""
        return await self.call(name, RENDER, RENDER, params, caller)

    async def action(self, name: str, action: str, params: dict[str, Any], caller: Caller) -> Any:
        """Have a module act on what somebody did."""
        return await self.call(name, ACTION, action, params, caller)

    async def command(self, name: str, command: str, params: dict[str, Any], caller: Caller) -> Any:
        """Have a module carry out a command."""
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
        """Call a function of a module for somebody, within its time. Plain data goes in and comes out."""
        module = self.loaded(name)
        surface = module.surface(kind, operation)
        activation = module.activation.below(ancestors) if ancestors else module.activation
        return await run_surface(
            surface,
            check_params(params),
            guard=activation.guard(caller),
            caller=caller,
            threads=module.threads,
            seconds=self._settings.call_timeout if seconds is None else seconds,
        )

    def stop(self) -> None:
        """Let the threads end."""
        for module in self._loaded.values():
            module.threads.stop()

    def _load(self, name: str, extension: Extension, nobody: Caller) -> None:
        try:
            activation = module_activation(extension, self._settings)
            surfaces = self._import(extension, activation, nobody)
        except SandboxError as error:
            self._found[name] = extension.broken(Problem("", error.diagnostics()))
            return
        streams = [surface for surface in surfaces if surface.is_stream]
        if streams:
            what = f"{streams[0].kind} {streams[0].name!r} yields; a module's functions return"
            self._found[name] = extension.broken(Problem("", what))
            return
        threads = Threads(self._settings.threads_per_subject, f"module-{name}")
        by_name = {(surface.kind, surface.name): surface for surface in surfaces}
        self._loaded[name] = LoadedModule(extension, activation, by_name, threads)

    def _import(self, extension: Extension, activation: Activation, nobody: Caller) -> tuple[Surface, ...]:
        """Import under the guard, in a thread of its own that can be given up."""
        package = prepare(extension.kind, extension.name, extension.folder)
        entry = os.path.relpath(extension.entry, extension.folder)
        label = str(extension.subject)
        outcome: list[Any] = []

        def work() -> None:
            outcome.append(activation.guard(nobody).run(capture, import_entry, package, entry))

        self._declarations.begin(label)
        thread = threading.Thread(target=work, name=f"load-{label}", daemon=True)
        thread.start()
        thread.join(self._settings.load_timeout)
        surfaces = self._declarations.end(label)
        if thread.is_alive():
            raise CallTimeout(f"its import did not end within {self._settings.load_timeout:g} s")
        release(outcome[0])
        return surfaces


def module_activation(extension: Extension, settings: RuntimeSettings) -> Activation:
    """Return what a module runs under: its declarations, its own folder to read, its data to read and write."""
    manifest = extension.manifest
    if not isinstance(manifest, ModuleManifest) or extension.kind is not ManifestKind.MODULE:
        raise TypeError("expected a module")
    data = settings.data_of(extension.subject)
    Path(data).mkdir(mode=0o700, parents=True, exist_ok=True)
    section = Section(access=manifest.access, allowed_imports=manifest.allowed_imports)
    return Activation(extension.subject, section, own_read=(extension.folder,), own_write=(data,))
