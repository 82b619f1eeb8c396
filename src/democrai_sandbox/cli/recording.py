"""``democrai-sandbox record``: observe code and propose the smallest manifest."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox.errors import CallTimeout, ExtensionFailed, InstallFailed, SandboxDenied, SandboxError

from .exits import Exit
from .files import text_of
from .necessity import Run, Runs
from .output import Mood
from .proposed import report
from .running import say_all, say_failure
from .subjects import (
    call,
    configured,
    environment,
    named,
    parameters,
    protected,
    read_manifest,
    script_file,
    script_spec,
    settings_of,
    surface,
    variables,
)

if TYPE_CHECKING:
    import argparse

    from democrai_sandbox.manifests import Manifest

    from .output import Output

_MOST_WRITTEN = 1024 * 1024


# ---- scripts ---------------------------------------------------------------------------------------------------------


def run_script(options: argparse.Namespace, output: Output) -> int:
    """Record a script."""
    from democrai_sandbox.runtime.scripts import running  # noqa: PLC0415 - takes its time
    from democrai_sandbox.sdk.recording import Recording  # noqa: PLC0415

    file, shut = script_file(options), protected(options)
    manifest, bare = read_manifest(options.manifest, named(file))

    def run(under: Manifest | None = None) -> Run:
        """Run it with its output on standard error, because standard output is for the proposal."""
        spec = script_spec(options, file, under or manifest, shut, observe=under is None)
        recording = Recording()
        status = running.run_script(spec, options.arguments, recording, timeout=options.timeout, streams=(0, 2, 2))
        return Run(recording, status)

    def run_quietly(under: Manifest) -> Run:
        """Run it without input, and capture its output."""
        spec, recording = script_spec(options, file, under, shut), Recording()
        with TemporaryFile() as written, Path(os.devnull).open("r+b", buffering=0) as nowhere:
            streams = (nowhere.fileno(), written.fileno(), nowhere.fileno())
            try:
                status = running.run_script(
                    spec, options.arguments, recording, timeout=options.timeout, streams=streams
                )
            except CallTimeout:
                status = Exit.FAILED
            written.seek(0)
            return Run(recording, status, written.read(_MOST_WRITTEN))

    return report(options, output, manifest, Runs(run, run, run_quietly), bare=bare)


# ---- extensions ------------------------------------------------------------------------------------------------------


class _Subject(NamedTuple):
    """Recorded extension."""

    options: argparse.Namespace
    output: Output
    manifest: Manifest
    folder: str
    scratch: str
    """Temporary folder of this command."""


def run_extension(options: argparse.Namespace, output: Output) -> int:
    """Record an extension: its import and a call, or its installation."""
    from democrai_sandbox.manifests import FILE_NAME, ManifestKind, load_manifest  # noqa: PLC0415 - takes its time

    folder = os.path.realpath(options.folder)
    name = os.path.basename(os.path.abspath(options.folder))  # noqa: PTH100, PTH119 - as a host names it
    manifest = load_manifest(f"{folder}/{FILE_NAME}", ManifestKind(options.verb), name=name)
    with TemporaryDirectory(prefix="record-") as scratch:
        subject = _Subject(options, output, manifest, folder, scratch)
        if getattr(options, "phase", "") == "install":
            install = partial(_installed, subject)
            runs = Runs(install, install, once="an installation is not repeated for each entry")
            return report(options, output, manifest, runs, pointer="/install")
        pointer = "/runtime" if "/runtime" in manifest.sections else ""
        granted = configured(options, manifest)
        packages = environment(options) or _requirements(subject)
        call_it = partial(_called, subject, packages)
        runs = Runs(call_it, call_it, partial(call_it, quiet=True))
        return report(options, output, manifest, runs, pointer=pointer, granted=granted)


def _called(subject: _Subject, packages: str, under: Manifest | None = None, *, quiet: bool = False) -> Run:
    """Import an extension and make the call, under a manifest or observed."""
    from democrai_sandbox.sdk.testing import Extension  # noqa: PLC0415 - takes its time

    options, output, manifest, folder, _ = subject
    settings = settings_of(options)
    extension = Extension(
        manifest.kind,
        folder,
        observe=under is None,
        manifest=under or manifest,
        environment=packages,
        env=variables(options.env),
        protected=protected(options),
        timeout=options.timeout,
        approve=[rule.to_dict() for rule in configured(options, manifest)],
        services={"engines.settings": lambda _view: settings},
    )
    if under is not None:
        extension.start_by(None, None)
    try:
        with extension:
            result = call(extension, surface(options), parameters(options))
    except (SandboxDenied, ExtensionFailed, CallTimeout) as error:
        if not quiet:
            say_failure(output, error, extension.printed)
        return Run(extension.recording, Exit.FAILED)
    except SandboxError:
        if not quiet:
            raise
        return Run(extension.recording, Exit.FAILED)
    if not quiet:
        say_all(output, extension.printed)
    return Run(extension.recording, Exit.OK, result)


# ---- installations ---------------------------------------------------------------------------------------------------


def _requirements(subject: _Subject) -> str:
    """Install the requirements of an extension once; return an empty text if it has none."""
    from democrai_sandbox.runtime.installs.once import install_once  # noqa: PLC0415 - takes its time

    options, output, manifest, folder, scratch = subject
    install: Any = manifest.sections.get("/install")
    if install is None or not install.requirements:
        return ""
    output.progress("installing requirements")
    found = install_once(manifest, folder, f"{scratch}/data", protected=protected(options))
    output.progress("")
    return found


def _installed(subject: _Subject, under: Manifest | None = None) -> Run:
    """Install an extension, under a manifest or with its HTTP requests observed.

    Files are checked against the manifest in both cases: pip probes many files that it does not need.
    """
    from democrai_sandbox.manifests.suggesting import section_of  # noqa: PLC0415 - takes its time
    from democrai_sandbox.runtime.installs.once import install_once, without_requests  # noqa: PLC0415
    from democrai_sandbox.sdk.recording import Installation, Recording  # noqa: PLC0415

    options, output, manifest, folder, scratch = subject
    recording = Recording()
    wanted = under or without_requests(manifest)
    for rule in section_of(wanted, "/install").access if under is None else ():
        recording.notice((rule.resource_type.value, rule.operation.value, rule.normalized_target))
    place = f"{scratch}/{'observed' if under is None else 'checked'}"
    decider = Installation(recording) if under is None else None
    try:
        install_once(wanted, folder, place, decider=decider, protected=protected(options), timeout=options.timeout)
    except InstallFailed as error:
        say_all(output, error.diagnostics(), Mood.BAD)
        return Run(recording, Exit.FAILED)
    return Run(recording, Exit.OK)


# ---- traces ----------------------------------------------------------------------------------------------------------


def run_suggest(options: argparse.Namespace, output: Output) -> int:
    """Propose a manifest from traces."""
    from democrai_sandbox.sdk.recording import Recording  # noqa: PLC0415 - takes its time

    recording = Recording()
    for trace in options.traces:
        with text_of(trace, fix="name a file written by record --trace FILE") as lines:
            recording.read(lines)
    manifest, bare = read_manifest(options.manifest, named(os.path.realpath(options.traces[0])))
    seen = Run(recording, Exit.OK)
    runs = Runs(lambda: seen, None, once="a trace cannot be run")
    return report(options, output, manifest, runs, bare=bare)
