"""Single installation without a host, into a temporary folder of the caller."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import ResourceType
from democrai_sandbox.runtime.extensions import Extension
from democrai_sandbox.runtime.settings import RuntimeSettings
from democrai_sandbox.runtime.worker.process import PlainStarter

from .installer import Installer

if TYPE_CHECKING:
    from democrai_sandbox.guard import Decider
    from democrai_sandbox.manifests import Manifest

    from .interface import Reporter

__all__ = ["install_once", "without_requests"]


def install_once(
    manifest: Manifest,
    folder: str,
    data_dir: str,
    *,
    decider: Decider | None = None,
    protected: tuple[str, ...] = (),
    report: Reporter | None = None,
    timeout: float = 1800.0,
) -> str:
    """Install an engine or extractor under its install section; return the environment's folder."""
    extension = Extension(manifest.kind, manifest.name, folder, manifest)
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
