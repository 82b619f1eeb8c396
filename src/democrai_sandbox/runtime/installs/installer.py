"""The installation of one engine or extractor: at most one at a time, in all processes, and all of it or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, cast

from democrai_sandbox.errors import NotInstalled
from democrai_sandbox.manifests.limits import NO_LIMITS
from democrai_sandbox.policy import InvalidInputError

from .building import Builder
from .interface import (
    InstallBusy,
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
    """Installs one extension, and knows what is installed. For use on one loop."""

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
        """Take the extension, whose manifest has to be sound, how its processes are started, and what is shut to it."""
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
        """What the manifest says about the install phase; engines and extractors say it in the same words."""
        return cast("EngineManifest", self.extension.manifest).install

    @property
    def progress(self) -> Progress | None:
        """The last step of the present or latest installation."""
        return self._progress

    def plan(self) -> Plan:
        """Return what has to be installed now. Reads local packages, which takes time."""
        return make_plan(self.declared.requirements, self.extension.folder)

    def status(self) -> InstallStatus:
        """Return what is installed, and how far an installation of this process is."""
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
        """Return the environment that the manifest asks for; without one the extension does not run."""
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
        """Build the environment that the manifest asks for, unless it is there; ``again`` builds it in any case.

        Until the new one is verified and counts, the one before it goes on being used. Whatever ends this early
        leaves nothing behind, or what the next installation, or ``recover``, takes away.
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
        """Take away what an interrupted installation left. One that goes on in another process is left alone."""
        if not await asyncio.to_thread(self.place.root.is_dir):
            return []
        try:
            with self.place.locked():
                return await asyncio.to_thread(self.place.sweep)
        except InstallBusy:
            return []

    @contextlib.asynccontextmanager
    async def _lock(self) -> AsyncIterator[int]:
        """Wait a little for the lock: a process that was ended may need a moment to be gone."""
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
                except Exception:  # noqa: BLE001 - telling somebody is no part of installing
                    _log.exception("who is told of the progress of %s failed", self.extension.subject)

        return keep
