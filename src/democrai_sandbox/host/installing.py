"""Engines and extractors of the configuration: checked against what there is, and installed in the background."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from democrai_sandbox.access.identity import Caller
from democrai_sandbox.errors import ConfigInvalid, ExtensionUnknown, InstallFailed
from democrai_sandbox.manifests import EngineManifest, ManifestKind
from democrai_sandbox.policy import InvalidInputError, Problem, SandboxError, SubjectKind, nearest, pointer_to
from democrai_sandbox.runtime.installs.interface import InstallState
from democrai_sandbox.runtime.installs.serving import config_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.policy import Subject
    from democrai_sandbox.runtime import Runtime
    from democrai_sandbox.runtime.engines import InstalledRuntime
    from democrai_sandbox.runtime.extensions import Extension, Registry

    from .settings import ExtensionSettings, InstalledSettings

_log = logging.getLogger(__name__)
_NOBODY = Caller()


def check_configured(settings: ExtensionSettings, registry: Registry) -> None:
    """Refuse settings of engines and extractors that there are not, and URLs that are none; all at once."""
    problems = [problem for subject, entry in settings.installed() for problem in _problems(registry, subject, entry)]
    if problems:
        raise ConfigInvalid(problems)


def _problems(registry: Registry, subject: Subject, entry: InstalledSettings) -> Iterator[Problem]:
    known = registry.engines if subject.kind is SubjectKind.ENGINE else registry.extractors
    place = pointer_to(f"/extensions/{subject.kind}s", subject.name)
    extension = known.get(subject.name)
    if extension is None:
        message = f"there is no {subject.kind} {subject.name!r} in the folders of the configuration: remove it here"
        yield Problem(place, message, nearest(subject.name, known))
        return
    try:
        config_rules(url_keys(extension), entry.settings or {})
    except InvalidInputError as error:
        for problem in error.problems:
            key = problem.pointer.rpartition("/")[2]
            yield Problem(f"{place}/settings/{key}", problem.message, problem.suggestion)


def url_keys(extension: Extension) -> tuple[str, ...]:
    """Return the settings whose values are URLs that the extension may then use."""
    manifest = extension.manifest
    return manifest.runtime.allowed_config_urls if isinstance(manifest, EngineManifest) else ()


class Installing:
    """Installations in the background. The status of the extension has their result."""

    def __init__(self, runtime: Runtime) -> None:
        """Begin with none."""
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, runtime: InstalledRuntime, name: str, *, caller: Caller = _NOBODY, again: bool = False) -> None:
        """Begin an installation, on the loop that runs here."""
        task = asyncio.get_running_loop().create_task(_installed(runtime, name, caller, again=again))
        # A task that nothing refers to may vanish.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def begin_configured(self, settings: ExtensionSettings) -> None:
        """Begin with what the configuration wants installed and is not."""
        for subject, entry in settings.installed():
            runtime = self._runtime.installed(ManifestKind(subject.kind.value))
            if entry.install and runtime is not None and await _is_wanted(runtime, subject.name):
                self.begin(runtime, subject.name)

    async def stop(self) -> None:
        """End what is under way, and wait for it."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with suppress(asyncio.CancelledError):
            task.result()


async def _is_wanted(runtime: InstalledRuntime, name: str) -> bool:
    """Tell whether an extension has to be installed. One that is broken is listed as such, and left alone."""
    try:
        status = await asyncio.to_thread(runtime.status, name)
    except (ExtensionUnknown, SandboxError) as error:
        _log.warning("%s %s is not installed: %s", runtime.kind, name, error)
        return False
    return status.state in (InstallState.MISSING, InstallState.OUTDATED)


async def _installed(runtime: InstalledRuntime, name: str, caller: Caller, *, again: bool) -> None:
    try:
        await runtime.install(name, caller=caller, again=again)
    except InstallFailed as error:
        _log.warning("the installation of %s failed: %s", name, error)
    except SandboxError as error:
        _log.warning("the installation of %s was not begun: %s", name, error)
