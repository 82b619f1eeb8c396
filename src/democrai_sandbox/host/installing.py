"""Configured engines and extractors: check them, and install them in the background."""

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
    """Reject settings of unknown engines and extractors, and invalid URLs, with all problems in one error."""
    problems = [problem for subject, entry in settings.installed() for problem in _problems(registry, subject, entry)]
    if problems:
        raise ConfigInvalid(problems)


def _problems(registry: Registry, subject: Subject, entry: InstalledSettings) -> Iterator[Problem]:
    known = registry.engines if subject.kind is SubjectKind.ENGINE else registry.extractors
    place = pointer_to(f"/extensions/{subject.kind}s", subject.name)
    extension = known.get(subject.name)
    if extension is None:
        message = f"{subject.kind} {subject.name!r} does not exist in the configured folders: remove this entry"
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
    """Background installations. The status of the extension contains their result."""

    def __init__(self, runtime: Runtime) -> None:
        """Start without installations."""
        self._runtime = runtime
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, runtime: InstalledRuntime, name: str, *, caller: Caller = _NOBODY, again: bool = False) -> None:
        """Start an installation on the running event loop."""
        task = asyncio.get_running_loop().create_task(_installed(runtime, name, caller, again=again))
        # The event loop holds tasks weakly, so keep a reference.
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def begin_configured(self, settings: ExtensionSettings) -> None:
        """Start the configured installations that are missing."""
        for subject, entry in settings.installed():
            runtime = self._runtime.installed(ManifestKind(subject.kind.value))
            if entry.install and runtime is not None and await _is_wanted(runtime, subject.name):
                self.begin(runtime, subject.name)

    async def stop(self) -> None:
        """Cancel running installations, and wait for their end."""
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
    """Return whether an extension must be installed. A broken one is skipped."""
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
        _log.warning("the installation of %s was not started: %s", name, error)
