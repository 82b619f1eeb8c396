"""Engines and extractors: installed once into a separate environment, then called in a worker that uses it.

One class serves both kinds. The install phase writes the environment and the runtime phase reads it. They share nothing
else: rules, imports, variables and the permission to start programs belong to the phase.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.policy import SandboxError

from .installs.installations import Installations
from .installs.installer import Installer
from .installs.serving import runtime_rules, worker_spec
from .promises import Promises
from .worker.interface import Identity
from .worker.pool import Worker
from .worker.process import PlainStarter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from democrai_sandbox.access.identity import Caller
    from democrai_sandbox.guard import Decider
    from democrai_sandbox.manifests import Manifest, ManifestKind

    from .confinement.assembly import Confinement
    from .extensions import Extension, Registry
    from .installs.interface import InstallStatus, Progress, Reporter
    from .installs.plan import Installed, Use
    from .settings import RuntimeSettings
    from .worker.interface import Host, Starter, WorkerSpec

METHOD = "method"
_NOBODY = Identity()
_NO_CONFIGURATION: Mapping[str, Any] = {}
_DRAIN_PAUSE = 0.05
_PATIENCE = 3600.0
"""Longest wait of synchronous callers; the call itself has a shorter timeout."""
_log = logging.getLogger(__name__)


class _Running(NamedTuple):
    """A worker, and the installation and configuration it was started with."""

    worker: Worker
    use: Use
    environment: str
    configuration: Mapping[str, Any]


class InstalledRuntime:
    """All engines, or all extractors. Belongs to one event loop."""

    def __init__(
        self,
        kind: ManifestKind,
        settings: RuntimeSettings,
        registry: Registry,
        host: Host,
        *,
        configuration: Callable[[str, str], Mapping[str, Any]] | None = None,
        decider: Decider | None = None,
        starter: Starter | None = None,
        confinement: Confinement | None = None,
        protected: tuple[str, ...] = (),
        sensitive_imports: tuple[str, ...] = (),
        look_seconds: float = 2.0,
    ) -> None:
        """Take the registered extensions. ``configuration(kind, name)`` reads the stored configuration and may block.

        ``confinement`` starts processes where the kernel confines them; ``starter`` starts them otherwise.
        ``look_seconds`` is the maximum age of a read configuration before a call reads it again.
        """
        self.kind = kind
        self._settings = settings
        self._host = host
        self._configuration = configuration or (lambda *_: _NO_CONFIGURATION)
        self._confinement = confinement
        by_host = None if confinement is None else confinement.host_starter()
        self._starter: Starter = starter or by_host or PlainStarter()
        self._protected = (*settings.protected, *protected)
        self._sensitive = sensitive_imports
        self._look_seconds = look_seconds
        make = partial(Installer, decider=decider, protected=self._protected, confinement=confinement)
        self._installations = Installations(kind, registry, lambda extension: make(extension, settings, self._starter))
        self._running: dict[str, _Running] = {}
        self._looked: dict[str, float] = {}
        self._candidates: dict[str, Manifest] = {}
        self._turns: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._retiring: set[asyncio.Task[None]] = set()
        self.promises = Promises(f"{kind.value}s", patience=_PATIENCE)
        """Runs work of the SDK services on this runtime's loop."""

    # ---- install phase -----------------------------------------------------------------------------------------------

    async def recover(self) -> dict[str, list[str]]:
        """Remove and return the leftovers of interrupted installations, at the start of the host.

        From then on this runtime belongs to the running loop.
        """
        self.promises.open()
        return await self._installations.recover()

    async def install(
        self, name: str, report: Reporter | None = None, *, caller: Identity | Caller = _NOBODY, again: bool = False
    ) -> Installed:
        """Install an extension. Concurrent callers wait for the same installation.

        Running calls keep the previous environment; the first call afterwards goes to a new worker.
        """
        installed = await self._installations.install(name, report, caller=Identity(*caller), again=again)
        self._looked.pop(name, None)
        return installed

    def status(self, name: str) -> InstallStatus:
        """Return whether an extension is installed, and the progress of its installation."""
        return self._installations.status(name)

    def progress(self, name: str) -> Progress | None:
        """Return the last step of the current or latest installation."""
        return self._installations.of(name).progress

    # ---- runtime phase -----------------------------------------------------------------------------------------------

    async def call(
        self,
        name: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        caller: Identity | Caller = _NOBODY,
        *,
        ancestors: tuple[str, ...] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - the worker is ended for it
        progress: Callable[..., Any] | None = None,
    ) -> Any:
        """Call a method on behalf of ``caller``; ``ancestors`` is the call chain so far."""
        worker = await self._worker(name)
        return await worker.call(
            METHOD, method, params, caller=caller, ancestors=ancestors, timeout=timeout, progress=progress
        )

    async def stream(
        self,
        name: str,
        method: str,
        params: Mapping[str, Any] | None = None,
        caller: Identity | Caller = _NOBODY,
        *,
        ancestors: tuple[str, ...] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - likewise
        progress: Callable[..., Any] | None = None,
    ) -> AsyncIterator[Any]:
        """Yield the items of a method as they arrive."""
        worker = await self._worker(name)
        items = worker.stream(
            METHOD, method, params, caller=caller, ancestors=ancestors, timeout=timeout, progress=progress
        )
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()  # type: ignore[attr-defined] # a generator

    def configuration(self, name: str) -> Mapping[str, Any]:
        """Return the stored configuration that the running worker was started with."""
        running = self._running.get(name)
        return _NO_CONFIGURATION if running is None else running.configuration

    async def start(self, name: str) -> None:
        """Start the worker before its first call."""
        await (await self._worker(name)).start()

    @property
    def workers(self) -> Mapping[str, int | None]:
        """Process id of each extension's worker; None for a worker that has ended. Thread-safe."""
        return {name: running.worker.pid for name, running in tuple(self._running.items())}

    def hold_against(self, name: str, candidate: Manifest | None) -> str:
        """Compare the runtime phase of an extension with a candidate; None ends the comparison. Thread-safe.

        Return the rules of the candidate as JSON; empty without a candidate.
        """
        if candidate is None:
            self._candidates.pop(name, None)
        else:
            self._candidates[name] = candidate
        running = self._running.get(name)
        if running is not None:
            running.worker.hold_against(*self._candidate(name, running.configuration))
        return self._candidate(name, self.configuration(name))[0]

    def access_changed(self) -> None:
        """Make the guards in all workers ask again. Thread-safe."""
        for running in tuple(self._running.values()):
            running.worker.access_changed()

    async def stop(self) -> None:
        """Stop all workers and installations."""
        await self._installations.stop()
        for running in tuple(self._running.values()):
            await _end(running)
        self._running.clear()
        if self._retiring:
            for retiring in self._retiring:
                retiring.cancel()
            await asyncio.wait(self._retiring)

    # ---- workers -----------------------------------------------------------------------------------------------------

    async def _worker(self, name: str) -> Worker:
        """Return the worker for an extension, with its current environment and configuration."""
        now = asyncio.get_running_loop().time()
        running = self._running.get(name)
        if running is not None and now < self._looked.get(name, 0.0) + self._look_seconds:
            return running.worker
        installer = self._installations.of(name)
        async with self._turns[name]:
            running = self._running.get(name)
            configuration = await self._read_configuration(name, running)
            installed = installer.place.installed()
            same = running is not None and installed is not None and running.environment == installed.folder
            if running is None or not same or running.configuration != configuration:
                running = await self._replace(name, running, configuration)
            self._looked[name] = now
            return running.worker

    async def _read_configuration(self, name: str, running: _Running | None) -> Mapping[str, Any]:
        """Return the stored configuration; if the database is down, keep the configuration of the running worker."""
        try:
            return await asyncio.to_thread(self._configuration, self.kind.value, name)
        except SandboxError as error:
            if running is None:
                raise
            _log.warning("the configuration of %s %s could not be read: %s", self.kind, name, error)
            return running.configuration

    async def _replace(self, name: str, old: _Running | None, configuration: Mapping[str, Any]) -> _Running:
        installer = self._installations.of(name)
        installed, use = await asyncio.to_thread(self._installations.take, name)
        try:
            spec = worker_spec(installer.extension, installed, configuration, self._settings)
        except BaseException:
            use.end()
            raise
        access, imports = self._candidate(name, configuration)
        spec = spec._replace(candidate_access=access, candidate_imports=imports)
        spec = spec._replace(protected=self._protected, sensitive_imports=self._sensitive)
        spec = spec._replace(native_packages=self._settings.native_packages)
        worker = self._made(installer.extension, spec)
        running = self._running[name] = _Running(worker, use, installed.folder, configuration)
        if old is not None:
            task = asyncio.create_task(_retire(old, self._settings.call_timeout))
            self._retiring.add(task)
            task.add_done_callback(self._retiring.discard)
        return running

    def _candidate(self, name: str, configuration: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
        """Return the rules of the candidate as JSON, and its imports; empty without a candidate."""
        candidate = self._candidates.get(name)
        return ("", ()) if candidate is None else runtime_rules(candidate, configuration)

    def _made(self, extension: Extension, spec: WorkerSpec) -> Worker:
        if self._confinement is None:
            return Worker(spec, self._host, starter=self._starter)
        confined, starter, rights = self._confinement.worker(extension, spec)
        return Worker(confined, self._host, starter=starter or self._starter, rights=rights)


async def _retire(running: _Running, seconds: float) -> None:
    """Stop a worker after its running calls, at the latest after ``seconds``."""
    try:
        async with asyncio.timeout(seconds):
            while running.worker.in_flight:  # noqa: ASYNC110 - workers do not report that they are idle
                await asyncio.sleep(_DRAIN_PAUSE)
    except TimeoutError:
        pass
    finally:
        await _end(running)


async def _end(running: _Running) -> None:
    try:
        await running.worker.stop()
    finally:
        running.use.end()
