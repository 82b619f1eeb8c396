"""Conversion of limits from manifests and the host to kernel limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.kernel.spawn.limits import ResourceLimits
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, ModuleManifest
from democrai_sandbox.manifests.limits import NO_LIMITS

if TYPE_CHECKING:
    from democrai_sandbox.manifests import Limits, Manifest

_MEGABYTE = 1024 * 1024


def declared_limits(manifest: Manifest | None, *, installing: bool = False) -> Limits:
    """Return the limits that a manifest declares for a phase."""
    if isinstance(manifest, ModuleManifest):
        return manifest.limits
    if isinstance(manifest, EngineManifest | ExtractorManifest):
        return (manifest.install if installing else manifest.runtime).limits
    return NO_LIMITS


def resource_limits(limits: Limits, *, wall: bool = True) -> ResourceLimits:
    """Return limits for the kernel. A worker's time limit applies to each call, not to the process."""
    megabytes = limits.address_space_mb
    return ResourceLimits(
        address_space=None if megabytes is None else megabytes * _MEGABYTE,
        cpu_seconds=limits.cpu_seconds,
        open_files=limits.open_files,
        processes=limits.processes,
        wall_seconds=limits.wall_seconds if wall else None,
    )
