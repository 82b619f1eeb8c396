"""Worker processes for subjects that the host's configuration isolates: ``isolation: process``."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.policy import rules_to_json

from .inherited import BASE_INTERPRETER, PREFIX
from .worker.interface import WorkerSpec
from .worker.pool import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.manifests import ModuleManifest, ToolDeclaration
    from democrai_sandbox.policy import Subject

    from .confinement.assembly import Confinement
    from .extensions import Extension
    from .settings import RuntimeSettings
    from .worker.interface import Host


class Workers:
    """Workers of isolated modules and tools. Engines and extractors always run in workers, managed separately."""

    def __init__(
        self,
        settings: RuntimeSettings,
        host: Host,
        *,
        protected: tuple[str, ...],
        on_end: Callable[[str], None] | None = None,
        confinement: Confinement | None = None,
    ) -> None:
        """Take the paths that are protected from all subjects, as in this process.

        ``on_end`` receives the label of a subject whose process has ended, so that the host can stop work for it.
        """
        self._settings = settings
        self._host = host
        self._protected = protected
        self._confinement = confinement
        self._on_end = on_end
        self._workers: dict[str, Worker] = {}
        self._of_modules: dict[str, list[Worker]] = defaultdict(list)
        """Workers under the declarations of a module, by module name: its own, and those of tools without an ``access``
        list.
        """

    def of_module(self, extension: Extension, manifest: ModuleManifest) -> Worker:
        """Return the worker of a module; it starts on first use."""
        return self._worker(extension, manifest, extension.subject, manifest)

    def of_tool(self, extension: Extension, manifest: ModuleManifest, declaration: ToolDeclaration) -> Worker:
        """Return the worker of one tool: with its own declarations, or with those of the module if it has none.

        The worker imports the module's code, so it can read the folder. Only a tool without declarations can use the
        module's data.
        """
        declared = manifest if declaration.access is None else declaration
        return self._worker(extension, manifest, declaration.subject, declared)

    def _worker(
        self,
        extension: Extension,
        manifest: ModuleManifest,
        subject: Subject,
        declared: ModuleManifest | ToolDeclaration,
    ) -> Worker:
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
        worker = self._workers[spec.label] = self._made(extension, spec)
        if declared is manifest:
            self._of_modules[manifest.name].append(worker)
        return worker

    def hold_against(self, module: str, candidate: ModuleManifest | None) -> None:
        """Compare all workers under a module's declarations with a candidate. Thread-safe."""
        access = "" if candidate is None else rules_to_json(candidate.access)
        imports = () if candidate is None else candidate.allowed_imports
        for worker in tuple(self._of_modules[module]):
            worker.hold_against(access, imports)

    def _made(self, extension: Extension, spec: WorkerSpec) -> Worker:
        if self._confinement is None:
            return Worker(spec, self._host, on_end=self._on_end)
        confined, starter, rights = self._confinement.worker(extension, spec)
        return Worker(confined, self._host, starter=starter, on_end=self._on_end, rights=rights)

    def access_changed(self) -> None:
        """Make the guards in the workers ask again. Thread-safe."""
        for worker in tuple(self._workers.values()):
            worker.access_changed()

    async def stop(self) -> None:
        """Stop all workers."""
        workers, self._workers = self._workers, {}
        for worker in workers.values():
            await worker.stop()
