"""Installation of engines and extractors: exclusive across all processes, and all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from democrai_sandbox.errors import InstallFailed, NotInstalled
from democrai_sandbox.errors.extensions import InstallBusy
from democrai_sandbox.manifests.limits import NO_LIMITS
from democrai_sandbox.policy import InvalidInputError, ResourceType
from democrai_sandbox.runtime.extensions.registry import RegisteredExtension
from democrai_sandbox.runtime.extensions.settings import RuntimeSettings
from democrai_sandbox.runtime.worker.process import PlainStarter

from .build import EnvironmentBuilder
from .environments import EnvironmentFolder, EnvironmentPlan, EnvironmentUse, InstalledEnvironment, make_plan
from .status import InstallReporter, InstallStage, InstallState, InstallStatus, InstallStep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from democrai_sandbox.guard import Decider
    from democrai_sandbox.manifests import EngineManifest, Install, Manifest, ManifestKind
    from democrai_sandbox.runtime.confinement.confinement import Confinement
    from democrai_sandbox.runtime.extensions.registry import Registry
    from democrai_sandbox.runtime.worker.process import CallIdentity, WorkerStarter

_log = logging.getLogger(__name__)
_PATIENCE = 5.0
_PAUSE = 0.1


class Installer:
    """Installs one extension, and reads its installed state. Belongs to one loop."""

    def __init__(
        self,
        extension: RegisteredExtension,
        settings: RuntimeSettings,
        starter: WorkerStarter,
        *,
        decider: Decider | None = None,
        protected: tuple[str, ...] = (),
        confinement: Confinement | None = None,
        timeout: float = 1800.0,
    ) -> None:
        """Take the extension, whose manifest has to be sound, the starter of its processes, and its protected paths."""
        extension.require_sound()
        self.extension = extension
        self.place = EnvironmentFolder(settings.data_dir, extension.subject)
        self._protected = protected or settings.protected
        self._starter = starter
        self._decider = decider
        self._confinement = confinement
        self._timeout = timeout
        self._running = False
        self._progress: InstallStep | None = None
        self._problem = ""

    @property
    def declared(self) -> Install:
        """Install section of the manifest; it has the same fields for engines and extractors."""
        return cast("EngineManifest", self.extension.manifest).install

    @property
    def progress(self) -> InstallStep | None:
        """Last step of the current or latest installation."""
        return self._progress

    def plan(self) -> EnvironmentPlan:
        """Return the current installation plan. Reads local packages, which takes time."""
        return make_plan(self.declared.requirements, self.extension.folder)

    def status(self) -> InstallStatus:
        """Return the installed state, and the progress of an installation in this process."""
        installed = self.place.installed()
        if self._running or self.place.is_busy():
            state = InstallState.INSTALLING
        elif installed is None:
            state = InstallState.MISSING
        elif installed.fingerprint == self.plan().fingerprint:
            state = InstallState.READY
        else:
            state = InstallState.OUTDATED
        folder, packages = (None, ()) if installed is None else (installed.folder, installed.packages)
        return InstallStatus(state, folder, packages, self._progress, self._problem)

    def require(self) -> InstalledEnvironment:
        """Return the environment for the current manifest; raise ``NotInstalled`` if it is missing or outdated."""
        installed = self.place.installed()
        subject = self.extension.subject
        fix = f"install it with 'democrai-sandbox extensions install {subject}', or on its page in the console"
        if installed is None:
            raise NotInstalled(f"{subject} is not installed; {fix}")
        if installed.fingerprint != self.plan().fingerprint:
            message = "was installed for other requirements, other local packages or another interpreter"
            raise NotInstalled(f"{subject} {message}; {fix}")
        return installed

    async def install(
        self, report: InstallReporter | None = None, *, caller: CallIdentity | None = None, again: bool = False
    ) -> InstalledEnvironment:
        """Build the environment for the manifest, unless it exists; ``again`` builds it in any case.

        The previous environment stays in use until the new one is verified and current. An interrupted installation
        leaves nothing behind, or leftovers that the next installation or ``recover`` removes.
        """
        if self._running:
            raise InstallBusy(f"{self.extension.subject} is being installed")
        self._running, self._problem = True, ""
        reporter = self._reporter(report)
        try:
            async with self._lock() as lock:
                return await self._install(reporter, caller, lock, again=again)
        except (InstallFailed, InvalidInputError) as error:
            self._problem = error.diagnostics()
            reporter(InstallStep(InstallStage.FAILED.value, str(error)))
            raise
        finally:
            self._running = False

    async def _install(
        self, report: InstallReporter, caller: CallIdentity | None, lock: int, *, again: bool
    ) -> InstalledEnvironment:
        await asyncio.to_thread(self.place.sweep)
        plan = await asyncio.to_thread(self.plan)
        installed = self.place.installed()
        if installed is None or installed.fingerprint != plan.fingerprint or again:
            limits = NO_LIMITS if self._confinement is None else self._confinement.install_limits(self.extension)
            builder = EnvironmentBuilder(
                self.extension.subject,
                self.declared,
                self.place,
                self._starter,
                report,
                protected=self._protected,
                decider=self._decider,
                confinement=self._confinement,
                limits=limits,
                timeout=min(self._timeout, limits.wall_seconds or self._timeout),
                caller=caller,
            )
            installed = await builder.build(plan, lock)
            self.place.finish(installed)
            await asyncio.to_thread(self.place.sweep)
        report(InstallStep(InstallStage.DONE.value, f"{len(installed.packages)} packages", 1.0))
        return installed

    async def recover(self) -> list[str]:
        """Remove and return the leftovers of an interrupted installation, unless another process is installing."""
        if not await asyncio.to_thread(self.place.root.is_dir):
            return []
        try:
            with self.place.locked():
                return await asyncio.to_thread(self.place.sweep)
        except InstallBusy:
            return []

    @contextlib.asynccontextmanager
    async def _lock(self) -> AsyncIterator[int]:
        """Wait a few seconds for the lock, because a stopped process may need a moment to end."""
        until = time.monotonic() + _PATIENCE
        with contextlib.ExitStack() as stack:
            lock = None
            while lock is None:
                try:
                    lock = stack.enter_context(self.place.locked())
                except InstallBusy:
                    if time.monotonic() > until:
                        raise
                    await asyncio.sleep(_PAUSE)
            yield lock

    def _reporter(self, report: InstallReporter | None) -> InstallReporter:
        def keep(progress: InstallStep) -> None:
            self._progress = progress
            if report is not None:
                try:
                    report(progress)
                except Exception:  # noqa: BLE001 - a failed report must not fail the installation
                    _log.exception("the progress reporter of %s failed", self.extension.subject)

        return keep


_ATTEMPTS = 3


class Installations:
    """One installer per extension, and one installation of it at a time."""

    def __init__(
        self, kind: ManifestKind, registry: Registry, make: Callable[[RegisteredExtension], Installer]
    ) -> None:
        """Take the registry; ``make`` returns the installer of an extension."""
        self._kind = kind
        self._registry = registry
        self._make = make
        self._installers: dict[str, Installer] = {}
        self._going_on: dict[str, asyncio.Task[InstalledEnvironment]] = {}

    def of(self, name: str) -> Installer:
        """Return the installer of a sound extension; raise the error of an unknown or broken one."""
        extension = self._registry.get(self._kind, name)
        extension.require_sound()
        known = self._installers.get(name)
        if known is None:
            known = self._installers[name] = self._make(extension)
        return known

    def status(self, name: str) -> InstallStatus:
        """Return the status; an installation that was just requested counts as installing."""
        found = self.of(name).status()
        if name in self._going_on and found.state is not InstallState.INSTALLING:
            return replace(found, state=InstallState.INSTALLING, problem="")
        return found

    def take(self, name: str) -> tuple[InstalledEnvironment, EnvironmentUse]:
        """Return the current environment, locked, because another process may replace it at any time."""
        installer = self.of(name)
        for _ in range(_ATTEMPTS):
            installed = installer.require()
            try:
                use = EnvironmentUse(installed.folder)
            except (FileNotFoundError, BlockingIOError):
                continue
            if installer.place.installed() == installed:
                return installed, use
            use.end()
        raise NotInstalled(f"{installer.extension.subject} is being reinstalled; try again")

    async def recover(self) -> dict[str, list[str]]:
        """Remove and return the leftovers of interrupted installations."""
        names = [each.name for each in self._registry if each.kind is self._kind and not each.is_broken]
        removed: dict[str, list[str]] = {}
        for name in names:
            try:
                if folders := await self.of(name).recover():
                    removed[name] = folders
            except Exception:  # noqa: BLE001 - one failed cleanup must not stop the others
                _log.exception("leftovers of an installation of %s %s could not be removed", self._kind, name)
        return removed

    async def install(
        self, name: str, report: InstallReporter | None, *, caller: CallIdentity, again: bool
    ) -> InstalledEnvironment:
        """Install an extension. Concurrent callers wait for the same installation."""
        installer = self.of(name)
        task = self._going_on.get(name)
        if task is None:
            work = installer.install(report, caller=caller, again=again)
            task = self._going_on[name] = asyncio.create_task(work)
            task.add_done_callback(lambda _: self._going_on.pop(name, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise

    async def stop(self) -> None:
        """Stop all running installations."""
        going_on = tuple(self._going_on.values())
        for task in going_on:
            task.cancel()
        if going_on:
            await asyncio.wait(going_on)


def install_once(
    manifest: Manifest,
    folder: str,
    data_dir: str,
    *,
    decider: Decider | None = None,
    protected: tuple[str, ...] = (),
    report: InstallReporter | None = None,
    timeout: float = 1800.0,
) -> str:
    """Install an engine or extractor under its install section; return the environment's folder."""
    extension = RegisteredExtension(manifest.kind, manifest.name, folder, manifest)
    settings = RuntimeSettings(data_dir=data_dir)
    Path(data_dir).mkdir(mode=0o700, exist_ok=True)
    installer = Installer(
        extension,
        settings,
        PlainStarter(),
        decider=decider,
        protected=(*settings.protected, *protected),
        timeout=timeout,
    )
    return asyncio.run(installer.install(report)).folder


def without_requests(manifest: Any) -> Manifest:
    """Return a manifest without network rules for its installation, so that every HTTP request is asked about."""
    kept = tuple(rule for rule in manifest.install.access if rule.resource_type is not ResourceType.NETWORK)
    found: Manifest = replace(manifest, install=replace(manifest.install, access=kept))
    return found
