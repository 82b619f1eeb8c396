"""Worker specification for a finished environment, with the rules of the runtime phase."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.manifests import EngineManifest, ExtractorManifest
from democrai_sandbox.policy import (
    InvalidInputError,
    Problem,
    parse_request_url,
    pointer_to,
    rules_for_targets,
    rules_to_json,
)
from democrai_sandbox.runtime.inherited import BASE_INTERPRETER
from democrai_sandbox.runtime.worker.interface import WorkerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.extensions import Extension
    from democrai_sandbox.runtime.settings import RuntimeSettings

    from .plan import Installed


def worker_spec(
    extension: Extension, installed: Installed, configuration: Mapping[str, Any], settings: RuntimeSettings
) -> WorkerSpec:
    """Return the worker of an engine or extractor: its ``runtime`` section and its folders, without child processes."""
    manifest = extension.manifest
    if not isinstance(manifest, EngineManifest | ExtractorManifest):
        raise TypeError(f"expected an engine or an extractor, got {extension.kind}")
    access, imports = runtime_rules(manifest, configuration)
    data = settings.data_of(extension.subject)
    Path(data).mkdir(mode=0o700, parents=True, exist_ok=True)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return WorkerSpec(
        kind=extension.kind.value,
        name=extension.name,
        folder=extension.folder,
        # Not the environment's own interpreter, which the install phase could have replaced.
        interpreter=BASE_INTERPRETER,
        environment=installed.folder,
        entry=manifest.entry,
        data_dir=data,
        access=access,
        allowed_imports=imports,
        own_read=(extension.folder, installed.folder),
        own_write=(data,),
        code_paths=(str(Path(installed.folder, "lib", version, "site-packages")),),
        threads=settings.threads_per_subject,
        start_timeout=settings.load_timeout,
        call_timeout=settings.call_timeout,
    )


def runtime_rules(manifest: Manifest, configuration: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the runtime rules of a manifest under a configuration, as JSON, and its imports."""
    if not isinstance(manifest, EngineManifest | ExtractorManifest):
        raise TypeError(f"expected an engine or an extractor, got {manifest.kind}")
    keys = manifest.runtime.allowed_config_urls if isinstance(manifest, EngineManifest) else ()
    rules = rules_to_json((*manifest.runtime.access, *config_rules(keys, configuration)))
    return rules, tuple(manifest.runtime.allowed_imports)


def config_rules(keys: tuple[str, ...], configuration: Mapping[str, Any]) -> tuple[AccessRule, ...]:
    """Return the rules for the URLs under these configuration keys; missing keys give none."""
    problems: list[Problem] = []
    targets: list[str] = []
    for key in keys:
        value = configuration.get(key)
        for text in value if isinstance(value, list) else [value]:
            if text is None or text == "":
                continue
            try:
                targets.append(parse_request_url(text).normalized)
            except InvalidInputError as error:
                where = pointer_to("/configuration", key)
                problems += [Problem(where, f"expected a URL: {item.message}") for item in error.problems]
    if problems:
        raise InvalidInputError(problems)
    return rules_for_targets(targets)
