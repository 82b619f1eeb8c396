"""Overview of extensions: their state, the functions they offer, and their problems."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.manifests import FILE_NAME, ManifestKind, lint
from democrai_sandbox.manifests.document import LARGEST_MANIFEST, PlacedProblem
from democrai_sandbox.manifests.loader import open_at_once
from democrai_sandbox.policy import InvalidInputError
from democrai_sandbox.runtime.extensions.importer import Surface, described
from democrai_sandbox.runtime.installs.environments import InstallState

from .run_modes import RunMode, modes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from democrai_sandbox.manifests import Finding
    from democrai_sandbox.policy import Problem
    from democrai_sandbox.runtime.calls.output import PrintedOutput
    from democrai_sandbox.runtime.extensions.registry import RegisteredExtension
    from democrai_sandbox.runtime.installs.environments import InstallStatus
    from democrai_sandbox.runtime.worker.process import SurfaceInfo

    from .run_modes import ModeReport
    from .sandbox import Sandbox

SURFACES = ("render", "action", "command", "task")
"""Runnable functions of a module, in display order."""
_KINDS = ("module", "engine", "extractor")


class ExtensionState(StrEnum):
    """Whether an extension can be used."""

    OK = "ok"
    BROKEN = "broken"
    NOT_INSTALLED = "not_installed"
    OUTDATED = "outdated"
    """Installed for another manifest or interpreter than the current one."""
    INSTALLING = "installing"


_STATES = MappingProxyType(
    {
        InstallState.MISSING: ExtensionState.NOT_INSTALLED,
        InstallState.OUTDATED: ExtensionState.OUTDATED,
        InstallState.INSTALLING: ExtensionState.INSTALLING,
        InstallState.READY: ExtensionState.OK,
    }
)


@dataclass(frozen=True, slots=True)
class ExtensionSummary:
    """Extension in a list."""

    kind: ManifestKind
    name: str
    state: ExtensionState
    version: str
    description: str
    folder: str
    isolation: str
    """``in_process``, or ``process`` for an extension with a worker."""
    mode: RunMode
    """Whether it runs in a worker, and the kernel confines it."""
    mode_reason: str
    problems: tuple[Problem, ...]
    findings: tuple[Finding, ...]
    install: InstallStatus | None
    """None for modules, which need no installation, and for broken extensions."""


@dataclass(frozen=True, slots=True)
class RunnableFunction:
    """Runnable function of a module."""

    kind: str
    name: str
    parameters: tuple[str, ...]
    """Parameter names; texts of the extension, like the hint."""
    hint: str
    """First line of its documentation."""
    every: float | None
    """Seconds between the runs of a scheduled task."""


@dataclass(frozen=True, slots=True)
class ExtensionProfile:
    """Extension with all details."""

    overview: ExtensionSummary
    manifest_file: str
    lines: tuple[str, ...]
    """Current content of the manifest; empty if it cannot be read."""
    offers: tuple[RunnableFunction, ...]
    printed: PrintedOutput
    limits: tuple[tuple[str, str, int], ...]
    """Section (``host`` for the configuration), name and number."""


def list_extensions(sandbox: Sandbox) -> tuple[ExtensionSummary, ...]:
    """List all extensions, by kind and name. Reads files, so do not call it on an event loop."""
    ordered = sorted(sandbox.runtime.extensions, key=lambda one: (_KINDS.index(one.kind.value), one.name))
    mode = modes(sandbox)
    return tuple(_overview(sandbox, one, mode(one)) for one in ordered)


def find_extension(sandbox: Sandbox, kind: str, name: str) -> RegisteredExtension:
    """Return an extension, broken or not; raise ``ExtensionUnknown`` with the nearest name."""
    if kind not in _KINDS:
        raise InvalidInputError.of(f"unknown kind {kind!r}: use module, engine or extractor", pointer="/kind")
    wanted = ManifestKind(kind)
    if wanted is ManifestKind.MODULE and name in sandbox.runtime.modules.extensions:
        return sandbox.runtime.modules.extensions[name]  # includes the result of the import, unlike the registry
    return sandbox.runtime.registry.get(wanted, name)


def extension_profile(sandbox: Sandbox, kind: str, name: str) -> ExtensionProfile:
    """Return one extension with all details; raise ``ExtensionUnknown``."""
    extension = find_extension(sandbox, kind, name)
    file = os.path.join(extension.folder, FILE_NAME)  # noqa: PTH118 - a str path
    return ExtensionProfile(
        _overview(sandbox, extension, modes(sandbox)(extension)),
        file,
        _lines(file),
        runnable_functions(sandbox, extension),
        sandbox.runtime.output.of(f"{extension.kind.value}:{extension.name}"),
        tuple(_limits(sandbox, extension)),
    )


def runnable_functions(sandbox: Sandbox, extension: RegisteredExtension) -> tuple[RunnableFunction, ...]:
    """Return the runnable functions of a module; empty for broken modules and other kinds."""
    if extension.kind is not ManifestKind.MODULE:
        return ()
    for module in sandbox.runtime.modules.all_loaded():
        if module.extension.name == extension.name:
            found = [_offered(surface) for surface in module.surfaces.values() if surface.kind in SURFACES]
            return tuple(sorted(found, key=lambda one: (SURFACES.index(one.kind), one.name)))
    return ()


def _overview(sandbox: Sandbox, extension: RegisteredExtension, mode: ModeReport) -> ExtensionSummary:
    manifest = extension.manifest
    runtime = sandbox.runtime.installed(extension.kind)
    install = None if runtime is None or extension.is_broken else runtime.status(extension.name)
    state = ExtensionState.OK if install is None else _STATES[install.state]
    return ExtensionSummary(
        extension.kind,
        extension.name,
        ExtensionState.BROKEN if extension.is_broken else state,
        getattr(manifest, "version", ""),
        getattr(manifest, "description", ""),
        extension.folder,
        _isolation(mode),
        mode.mode,
        mode.reason,
        extension.problems,
        () if manifest is None else lint(manifest, in_process=mode.mode is RunMode.IN_PROCESS),
        install,
    )


def _isolation(mode: ModeReport) -> str:
    return "in_process" if mode.mode is RunMode.IN_PROCESS else "process"


def _offered(surface: Surface | SurfaceInfo) -> RunnableFunction:
    every = surface.options.get("every")
    if isinstance(surface, Surface):
        parameters, hint = described(surface)
    else:
        parameters, hint = surface.parameters, surface.hint
    seconds = float(every) if isinstance(every, int | float) else None
    return RunnableFunction(surface.kind, surface.name, parameters, hint, seconds)


def _limits(sandbox: Sandbox, extension: RegisteredExtension) -> Iterator[tuple[str, str, int]]:
    sections = extension.manifest.sections if extension.manifest else {}
    for pointer, section in sections.items():
        for name, number in section.limits.given() if section else ():
            yield pointer.strip("/") or "manifest", name, number
    for name, number in sandbox.settings.limits.given():
        yield "host", name, number


def _lines(file: str) -> tuple[str, ...]:
    """Return the lines of a manifest, broken or not, without blocking on a device or pipe."""
    try:
        with open(file, "rb", opener=open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return ()
            data = stream.read(LARGEST_MANIFEST)
    except (OSError, ValueError):
        return ()
    return tuple(data.decode("utf-8", "replace").removesuffix("\n").split("\n"))


def line_of(problem: Problem) -> int:
    """Return the line of a problem; 0 if unknown."""
    return problem.line if isinstance(problem, PlacedProblem) else 0
