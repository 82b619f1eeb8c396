"""Installation of one engine or extractor: exclusive across all processes, and all or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, cast

from democrai_sandbox.errors import NotInstalled
from democrai_sandbox.errors.extensions import InstallBusy
from democrai_sandbox.manifests.limits import NO_LIMITS
from democrai_sandbox.policy import InvalidInputError

from .building import Builder
from .interface import (
    InstallFailed,
    InstallState,
    InstallStatus,
    Progress,
    Reporter,
    Stage,
)
from .plan import Installed, Place, Plan, make_plan

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from democrai_sandbox.guard import Decider
    from democrai_sandbox.manifests import EngineManifest, Install
    from democrai_sandbox.runtime.confinement.assembly import Confinement
    from democrai_sandbox.runtime.extensions import Extension
    from democrai_sandbox.runtime.settings import RuntimeSettings
    from democrai_sandbox.runtime.worker.interface import Identity, Starter

_log = logging.getLogger(__name__)
_PATIENCE = 5.0
_PAUSE = 0.1


class Installer:
    """Installs one extension, and reads its installed state. Belongs to one loop."""

    def __init__(
        self,
        extension: Extension,
        settings: RuntimeSettings,
        starter: Starter,
        *,
        decider: Decider | None = None,
        protected: tuple[str, ...] = (),
        confinement: Confinement | None = None,
        timeout: float = 1800.0,
    ) -> None:
        """Take the extension, whose manifest has to be sound, the starter of its processes, and its protected paths."""
        extension.require_sound()
        self.extension = extension
        self.place = Place(settings.data_dir, extension.subject)
        self._protected = protected or settings.protected
        self._starter = starter
        self._decider = decider
        self._confinement = confinement
        self._timeout = timeout
        self._running = False
        self._progress: Progress | None = None
        self._problem = ""

    @property
    def declared(self) -> Install:
        """Install section of the manifest; it has the same fields for engines and extractors."""
        return cast("EngineManifest", self.extension.manifest).install

    @property
    def progress(self) -> Progress | None:
        """Last step of the current or latest installation."""
        return self._progress

    def plan(self) -> Plan:
        """Return the current installation plan. Reads local packages, which takes time."""
        return make_plan(self.declared.requirements, self.extension.folder)

    def status(self) -> InstallStatus:
        """Return the installed state, and the progress of an installation in this process."""
        installed = self.place.installed()
        state = self._state(installed)
        return InstallStatus(
            state,
            installed.folder if installed else None,
            installed.packages if installed else (),
            self._progress,
            self._problem,
        )

    def _state(self, installed: Installed | None) -> InstallState:
        if self._running or self.place.is_busy():
            return InstallState.INSTALLING
        if installed is None:
            return InstallState.MISSING
        return InstallState.READY if installed.fingerprint == self.plan().fingerprint else InstallState.OUTDATED

    def require(self) -> Installed:
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
        self, report: Reporter | None = None, *, caller: Identity | None = None, again: bool = False
    ) -> Installed:
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
            reporter(Progress(Stage.FAILED.value, str(error)))
            raise
        finally:
            self._running = False

    async def _install(self, report: Reporter, caller: Identity | None, lock: int, *, again: bool) -> Installed:
        await asyncio.to_thread(self.place.sweep)
        plan = await asyncio.to_thread(self.plan)
        installed = self.place.installed()
        if installed is None or installed.fingerprint != plan.fingerprint or again:
            limits = NO_LIMITS if self._confinement is None else self._confinement.install_limits(self.extension)
            builder = Builder(
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
        report(Progress(Stage.DONE.value, f"{len(installed.packages)} packages", 1.0))
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

    def _reporter(self, report: Reporter | None) -> Reporter:
        def keep(progress: Progress) -> None:
            self._progress = progress
            if report is not None:
                try:
                    report(progress)
                except Exception:  # noqa: BLE001 - a failed report must not fail the installation
                    _log.exception("the progress reporter of %s failed", self.extension.subject)

        return keep
