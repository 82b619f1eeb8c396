"""From the limits of manifests and of the host to those that the kernel keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from democrai_sandbox.kernel.spawn.limits import ResourceLimits
from democrai_sandbox.manifests import EngineManifest, ExtractorManifest, ModuleManifest
from democrai_sandbox.manifests.limits import NO_LIMITS

if TYPE_CHECKING:
    from democrai_sandbox.manifests import Limits, Manifest

_MEGABYTE = 1024 * 1024


def declared_limits(manifest: Manifest | None, *, installing: bool = False) -> Limits:
    """Return the limits that a manifest asks for in a phase."""
    if isinstance(manifest, ModuleManifest):
        return manifest.limits
    if isinstance(manifest, EngineManifest | ExtractorManifest):
        return (manifest.install if installing else manifest.runtime).limits
    return NO_LIMITS


def resource_limits(limits: Limits, *, wall: bool = True) -> ResourceLimits:
    """Return limits as the kernel takes them. A worker's time is kept for each of its calls, not for its life."""
    megabytes = limits.address_space_mb
    return ResourceLimits(
        address_space=None if megabytes is None else megabytes * _MEGABYTE,
        cpu_seconds=limits.cpu_seconds,
        open_files=limits.open_files,
        processes=limits.processes,
        wall_seconds=limits.wall_seconds if wall else None,
    )
