"""Host functions for the child processes of these tests. Loaded there by its path."""

from __future__ import annotations

import asyncio
import os


def settings_of(base, **more):
    """Return the settings of a small host."""
    from democrai_sandbox.runtime.extensions.settings import RuntimeSettings

    folders = {"engines_path": f"{base}/engines", "extractors_path": f"{base}/extractors"}
    for folder in folders.values():
        os.makedirs(folder, exist_ok=True)
    return RuntimeSettings(data_dir=f"{base}/data", **folders, **more)


def know_pip():
    """Skip the process that reads pip's configuration: a folder of wheels or none, no index."""
    from democrai_sandbox.runtime.installs import installer, pip

    async def told(starter, folder):
        return pip.PipConfiguration(
            version=pip._version_of(folder),
            index_url="https://index.test/simple",
            default_index="https://index.test/simple",
            default_files="https://files.test",
            no_index=True,
            find_links=(places,) if (places := os.environ.get("PIP_FIND_LINKS")) else (),
        )

    installer.read_configuration = told


def installer_of(base, name="demo", kind="engine", asking=False, **more):
    """Return the installer of one extension, as in the runtime; with ``asks``, pip's configuration is read."""
    from democrai_sandbox.manifests import ManifestKind
    from democrai_sandbox.runtime.extensions.registry import discover
    from democrai_sandbox.runtime.installs.installer import Installer
    from democrai_sandbox.runtime.worker.process import PlainStarter

    if "PIP_NO_INDEX" in os.environ and not asking:
        know_pip()
    settings = settings_of(base)
    extension = discover(settings).get(ManifestKind(kind), name)
    return Installer(extension, settings, PlainStarter(), **more)


def install(installer, steps=None, **more):
    """Install, and return the outcome as plain data."""
    from democrai_sandbox.policy import SandboxError

    try:
        installed = asyncio.run(installer.install(None if steps is None else steps.append, **more))
    except SandboxError as error:
        told = {"error": type(error).__name__, "text": error.diagnostics(), "code": error.code}
        return {**told, "denials": getattr(error, "denials", ())}
    return {"folder": installed.folder, "packages": installed.packages}


def left(installer):
    """Return the entries in the folder of environments."""
    place = installer.place.environments
    return sorted(os.listdir(place)) if place.is_dir() else []
