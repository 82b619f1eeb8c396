"""Installers of all extensions of one kind, and their running installations. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from democrai_sandbox.errors import NotInstalled

from .interface import InstallState
from .plan import Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.manifests import ManifestKind
    from democrai_sandbox.runtime.extensions import Extension, Registry
    from democrai_sandbox.runtime.worker.interface import Identity

    from .installer import Installer
    from .interface import InstallStatus, Reporter
    from .plan import Installed

_ATTEMPTS = 3
_log = logging.getLogger(__name__)


class Installations:
    """One installer per extension, and one installation of it at a time."""

    def __init__(self, kind: ManifestKind, registry: Registry, make: Callable[[Extension], Installer]) -> None:
        """Take the registry; ``make`` returns the installer of an extension."""
        self._kind = kind
        self._registry = registry
        self._make = make
        self._installers: dict[str, Installer] = {}
        self._going_on: dict[str, asyncio.Task[Installed]] = {}

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

    def take(self, name: str) -> tuple[Installed, Use]:
        """Return the current environment, locked, because another process may replace it at any time."""
        installer = self.of(name)
        for _ in range(_ATTEMPTS):
            installed = installer.require()
            try:
                use = Use(installed.folder)
            except (FileNotFoundError, BlockingIOError):
                continue
            if installer.place.installed() == installed:
                return installed, use
            use.end()
        raise NotInstalled(f"{installer.extension.subject} is being reinstalled; try again")

    async def recover(self) -> dict[str, list[str]]:
        """Remove and return the leftovers of interrupted installations."""
        found = [extension for extension in self._registry if extension.kind is self._kind]
        swept = {each.name: await self._recover(each.name) for each in found if not each.is_broken}
        return {name: folders for name, folders in swept.items() if folders}

    async def _recover(self, name: str) -> list[str]:
        try:
            return await self.of(name).recover()
        except Exception:  # noqa: BLE001 - one failed cleanup must not stop the others
            _log.exception("leftovers of an installation of %s %s could not be removed", self._kind, name)
            return []

    async def install(self, name: str, report: Reporter | None, *, caller: Identity, again: bool) -> Installed:
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
