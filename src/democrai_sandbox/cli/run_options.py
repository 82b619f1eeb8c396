"""Code, manifest and parameters of ``run`` and ``record``."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.cli.arguments.options import SURFACES
from democrai_sandbox.errors import CommandMisused, CommandRefused

from .connection import configuration
from .output import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.extension_run import ExtensionRun
    from democrai_sandbox.runtime.worker.process import WorkerSpec

_PACKAGES = "{environment}/lib/python{0}.{1}/site-packages"


# ---- what was given --------------------------------------------------------------------------------------------------


def protected(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the protected paths of the host."""
    from democrai_sandbox.host.directories import protected_paths  # noqa: PLC0415 - takes its time

    return protected_paths(configuration(options).settings)


def variables(given: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return the variables that ``--env`` names."""
    found: list[tuple[str, str]] = []
    for text in given:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise CommandMisused(f"--env {visible(name)}: the variable is not set", fix="give its value: NAME=VALUE")
        found.append((name, value if equals else os.environ[name]))
    return tuple(found)


def environment(options: argparse.Namespace) -> str:
    """Return the virtual environment of ``--environment``, or an empty text for that of this command."""
    if not options.environment:
        return ""
    folder: str = os.path.abspath(options.environment)  # noqa: PTH100 - its links are its own business
    if not Path(_PACKAGES.format(*sys.version_info, environment=folder)).is_dir():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise CommandMisused(
            f"{visible(folder)} is not a virtual environment of Python {version}",
            fix=f"create one with python{version} -m venv",
        )
    return folder


def parameters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of a call."""
    found: dict[str, Any] = {}
    if options.params is not None:
        try:
            found = json.loads(options.params)
        except ValueError as error:
            raise CommandMisused(f"--params is not valid JSON: {visible(str(error))}") from None
        if type(found) is not dict:
            raise CommandMisused("--params is not an object", fix='write it as {"name": value}')
    return found | pairs(options.param, "--param")


def pairs(given: Iterable[str], option: str) -> dict[str, Any]:
    """Return the NAME=VALUE pairs of an option; a value is JSON, or otherwise text."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise CommandMisused(f"{option} {visible(text)} has no name", fix="write NAME=VALUE")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def configured(options: argparse.Namespace, manifest: Manifest) -> tuple[AccessRule, ...]:
    """Return the rules for the URLs in the stored settings that the manifest allows by key."""
    from democrai_sandbox.runtime.installs.environments import config_rules  # noqa: PLC0415 - takes its time

    keys = getattr(manifest.sections.get("/runtime"), "allowed_config_urls", ())
    return config_rules(keys, settings_of(options))


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the stored settings of an engine or extractor from ``--setting``."""
    return pairs(getattr(options, "setting", ()), "--setting")


def surface(options: argparse.Namespace) -> tuple[str, str] | None:
    """Return kind and name of the called function, or None."""
    if getattr(options, "method", None):
        return "method", options.method
    if getattr(options, "render", False):
        return "render", "render"
    named = ((kind, getattr(options, kind, None)) for kind in SURFACES)
    return next(((kind, name) for kind, name in named if name), None)


def call(extension: ExtensionRun, wanted: tuple[str, str] | None, params: dict[str, Any]) -> Any:
    """Call the function, if one is given."""
    if wanted is None:
        return None
    kind, name = wanted
    return extension.method(name, **params) if kind == "method" else extension.call(kind, name, **params)


# ---- manifests -------------------------------------------------------------------------------------------------------


def read_manifest(file: str | None, name: str) -> tuple[Manifest, bool]:
    """Return the manifest of a script or program, and whether its file has only declarations.

    Without a file, the manifest is empty.
    """
    from democrai_sandbox.manifests import ManifestKind, load_manifest, make_manifest  # noqa: PLC0415 - takes its time

    if file is None:
        return make_manifest({"name": _name(name)}, ManifestKind.MODULE), False
    place = Path(os.path.abspath(file))  # noqa: PTH100 - as manifests are read
    try:
        value = json.loads(place.read_bytes())
    except (OSError, ValueError):
        value = None  # the manifest reader gives the better error
    if type(value) is dict and "name" not in value:
        return make_manifest({"name": _name(name), **value}, ManifestKind.MODULE, folder=str(place.parent)), True
    return load_manifest(place, ManifestKind.MODULE), False


def _name(text: str) -> str:
    """Return a valid name of a subject."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-") or "script"


# ---- scripts ---------------------------------------------------------------------------------------------------------


def script_file(options: argparse.Namespace) -> str:
    """Return the file of a script with links resolved."""
    file: str = os.path.realpath(options.file)
    if not os.path.isfile(file):  # noqa: PTH113 - a text
        raise CommandRefused(f"file {visible(options.file)} does not exist", fix="name a file with Python code")
    return file


def named(file: str) -> str:
    """Return the name of a script without a manifest."""
    return os.path.splitext(os.path.basename(file))[0]  # noqa: PTH119, PTH122 - a text


def script_spec(
    options: argparse.Namespace, file: str, manifest: Manifest, shut: tuple[str, ...], *, observe: bool = False
) -> WorkerSpec:
    """Return the settings of a script run: without rules it may read its own file only."""
    from democrai_sandbox.manifests.lint import SENSITIVE_IMPORTS  # noqa: PLC0415 - takes its time
    from democrai_sandbox.policy import rules_to_json  # noqa: PLC0415
    from democrai_sandbox.runtime.child_process import BASE_INTERPRETER, PREFIX  # noqa: PLC0415
    from democrai_sandbox.runtime.worker.process import WorkerSpec  # noqa: PLC0415

    declared = rules_of(manifest)
    return WorkerSpec(
        kind=manifest.kind.value,
        name=manifest.name,
        folder=os.path.dirname(file),  # noqa: PTH120 - a text
        interpreter=BASE_INTERPRETER,
        environment=environment(options) or PREFIX,
        entry=file,
        access=rules_to_json(() if observe else declared),
        allowed_imports=tuple(sorted(SENSITIVE_IMPORTS)) if observe else imports_of(manifest),
        own_read=(file,),
        protected=shut,
        env=variables(options.env),
        tells_accesses=observe,
    )


def rules_of(manifest: Manifest) -> tuple[AccessRule, ...]:
    """Return the rules at the top level of a manifest."""
    section = manifest.sections.get("")
    return () if section is None else section.access


def imports_of(manifest: Manifest) -> tuple[str, ...]:
    """Return the sensitive imports at the top level of a manifest."""
    section = manifest.sections.get("")
    return () if section is None else section.allowed_imports
