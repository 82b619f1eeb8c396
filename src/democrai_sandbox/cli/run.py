"""``democrai-sandbox run``: run a script, a module or a program once under a policy; options shared with ``record``."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from democrai_sandbox.cli.arguments.options import SURFACES, written_value
from democrai_sandbox.errors import CommandMisused, CommandRefused, ExtensionFailed, KernelUnsupported, SandboxDenied

from .connection import configuration
from .output import Exit, Mood, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.policy import AccessRule, SandboxError
    from democrai_sandbox.runtime.confinement.process_paths import ProcessRights
    from democrai_sandbox.runtime.extension_run import ExtensionRun
    from democrai_sandbox.runtime.single_run import ConfinedRun
    from democrai_sandbox.runtime.worker.process import WorkerSpec

    from .output import CommandOutput

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
        found[name] = written_value(value)
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


def read_manifest(file: str | None, name: str) -> tuple[Manifest, bool]:
    """Return the manifest of a script or program, empty without a file, and whether the file has only declarations."""
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

    declared, section = rules_of(manifest), manifest.sections.get("")
    return WorkerSpec(
        kind=manifest.kind.value,
        name=manifest.name,
        folder=os.path.dirname(file),  # noqa: PTH120 - a text
        interpreter=BASE_INTERPRETER,
        environment=environment(options) or PREFIX,
        entry=file,
        access=rules_to_json(() if observe else declared),
        allowed_imports=tuple(sorted(SENSITIVE_IMPORTS)) if observe else getattr(section, "allowed_imports", ()),
        own_read=(file,),
        protected=shut,
        env=variables(options.env),
        tells_accesses=observe,
    )


def rules_of(manifest: Manifest) -> tuple[AccessRule, ...]:
    """Return the rules at the top level of a manifest."""
    section = manifest.sections.get("")
    return () if section is None else section.access


_MISSING = "the kernel can allow only existing paths{}: create it first, or declare its parent folder"
_NATIVE = ", so programs and native code cannot use it"
_CLOSED = (
    "no file can be created directly in this folder, because it contains the Python environment of this command. "
    "Declare a folder beside the environment, or move the environment"
)
_SYSTEM = ("PermissionError: [Errno 1]", "PermissionError: [Errno 13]")
_NO_CODE = "the kernel refused this, not the guard: run again with --no-kernel to get the guard's explanation"


def run_script(options: argparse.Namespace, output: CommandOutput) -> int:
    """Run a script."""
    from democrai_sandbox.runtime import single_run  # noqa: PLC0415
    from democrai_sandbox.runtime.confinement.process_paths import ProcessRights  # noqa: PLC0415 - takes its time
    from democrai_sandbox.runtime.extension_run import Recording  # noqa: PLC0415

    file, shut = script_file(options), protected(options)
    manifest, _ = read_manifest(options.manifest, named(file))
    recording = Recording()
    with ExitStack() as stack:
        temp = _temp(shut, stack)
        spec = script_spec(options, file, manifest, shut)
        spec = spec._replace(env=(*(("TMPDIR", place) for place in temp), *spec.env))
        read = (file, spec.environment)
        whose = ProcessRights(spec.label, rules_of(manifest), read, temp, protected=shut, own_temp=bool(temp))
        held = _prepare_kernel_layer(whose, output, stack, kernel=options.kernel)
        start = single_run.PlainStart if held is None else held.start
        confined = spec._replace(no_exec=held is not None, confined=held is not None)
        status = single_run.run_script(confined, options.arguments, recording, start=start, timeout=options.timeout)
    denied = [str(denial) for denial in recording.denied.values()]
    _report(output, "run.script/1", {"status": status, "layers": _layers(held), "denied": denied})
    return status


def run_module(options: argparse.Namespace, output: CommandOutput) -> int:
    """Import a module and call one of its functions."""
    from democrai_sandbox.manifests import ManifestKind  # noqa: PLC0415 - takes its time
    from democrai_sandbox.runtime.child_process import PREFIX  # noqa: PLC0415
    from democrai_sandbox.runtime.confinement.process_paths import ProcessRights  # noqa: PLC0415
    from democrai_sandbox.runtime.extension_run import ExtensionRun  # noqa: PLC0415

    folder, shut, packages = os.path.realpath(options.folder), protected(options), environment(options) or PREFIX
    wanted, params = surface(options), parameters(options)
    with ExitStack() as stack:
        temp = _temp(shut, stack)
        env = (*(("TMPDIR", place) for place in temp), *variables(options.env))
        module = ExtensionRun(
            ManifestKind.MODULE,
            options.folder,
            environment=packages,
            env=env,
            protected=shut,
            timeout=options.timeout,
            services={"tasks.progress": partial(_say_progress, output)},
        )
        write = (str(module.data_dir), *temp)
        label, rules = str(module.manifest.subject), rules_of(module.manifest)
        whose = ProcessRights(label, rules, (folder, packages), write, protected=shut, own_temp=bool(temp))
        held = _prepare_kernel_layer(whose, output, stack, kernel=options.kernel, blocked=_NATIVE)
        module.start_by(*((None, None) if held is None else (held.starter, held.launcher)))
        try:
            with module:
                value, surfaces = call(module, wanted, params), module.surfaces
        except (SandboxDenied, ExtensionFailed) as error:
            say_failure(output, error, module.printed)
            if held is not None and any(sign in getattr(error, "traceback", "") for sign in _SYSTEM):
                output.say(_NO_CODE)
            return Exit.FAILED
    say_all(output, module.printed)
    if output.is_json:
        content = {"value": value, "surfaces": surfaces, "layers": _layers(held)}
        output.data("run.module/1", {"subject": whose.label, **content})
    elif wanted is None:
        output.table(("KIND", "NAME"), surfaces)
    else:
        output.line(json.dumps(value, indent=2))
    return Exit.OK


def run_program(options: argparse.Namespace, output: CommandOutput) -> int:
    """Run a program under the kernel layer."""
    from democrai_sandbox.runtime import single_run  # noqa: PLC0415
    from democrai_sandbox.runtime.confinement.process_paths import ProcessRights  # noqa: PLC0415
    from democrai_sandbox.runtime.worker.process import WorkerSpec, environment_of  # noqa: PLC0415

    found = which(options.argv[0])
    if found is None:
        raise CommandRefused(f"program {visible(options.argv[0])} not found", fix="give its name or its path")
    program, shut, here = os.path.realpath(found), protected(options), os.getcwd()  # noqa: PTH109 - a text
    manifest, _ = read_manifest(options.manifest, named(found))
    with ExitStack() as stack:
        temp = _temp(shut, stack)
        env = (*(("TMPDIR", place) for place in temp), *variables(options.env))
        label, rules = str(manifest.subject), rules_of(manifest)
        whose = ProcessRights(label, rules, write=temp, execute=(program,), protected=shut, own_temp=bool(temp))
        spec = WorkerSpec(manifest.kind.value, manifest.name, here, program, env=env)
        command = single_run.Command(tuple(options.argv), environment_of(spec), here, program=program)
        held = stack.enter_context(single_run.confined_run(whose))  # no guard restricts a program
        _say_layers(output, held)
        status = single_run.run_program(command, start=held.start, timeout=options.timeout)
    _report(output, "run.program/1", {"status": status, "layers": _layers(held)})
    return status


def _temp(shut: tuple[str, ...], stack: ExitStack) -> tuple[str, ...]:
    """Return a separate temporary folder if the usual one contains protected files, which the kernel then blocks."""
    from democrai_sandbox.guard.runtime_paths import read_only_paths  # noqa: PLC0415 - takes its time
    from democrai_sandbox.policy import is_at_or_below  # noqa: PLC0415

    usual = os.path.realpath(gettempdir())
    if not any(is_at_or_below(os.path.realpath(place), usual) for place in (*shut, *read_only_paths())):
        return ()
    return (stack.enter_context(TemporaryDirectory(prefix="run-")),)


def _prepare_kernel_layer(
    whose: ProcessRights, output: CommandOutput, stack: ExitStack, *, kernel: bool | None, blocked: str = ""
) -> ConfinedRun | None:
    """Prepare the kernel layer if requested or available, and report the layers in force."""
    if kernel is False:
        output.say("enforced by: the guard only", Mood.FAINT)
        return None
    from democrai_sandbox.runtime.single_run import confined_run  # noqa: PLC0415 - takes its time

    try:
        held = stack.enter_context(confined_run(whose))
    except KernelUnsupported as error:
        if kernel:
            raise
        output.say(f"enforced by: the guard only; {visible(error.what)}", Mood.WARNING)
        return None
    _say_layers(output, held, blocked=blocked)
    return held


def _say_layers(output: CommandOutput, held: ConfinedRun, *, blocked: str = "") -> None:
    """Report the layers in force; ``blocked`` says who cannot use missing paths, if others can."""
    output.say(f"enforced by: {', '.join(_layers(held)['held'])}", Mood.FAINT)
    for text in held.unenforced:
        output.say(f"not enforced by the kernel: {visible(text)}", Mood.FAINT)
    for path in held.closed:
        output.say(f"blocked by the kernel: {visible(path)}: {_CLOSED}", Mood.WARNING)
    for path in held.missing:
        output.say(f"blocked by the kernel: {visible(path)} does not exist; {_MISSING.format(blocked)}", Mood.WARNING)


def _layers(held: ConfinedRun | None) -> dict[str, list[str]]:
    if held is None:
        return {"held": ["guard"], "unenforced": [], "missing": [], "closed": []}
    guard = [] if held.is_program else ["guard"]
    layers = [*guard, f"Landlock (ABI {held.abi})", "seccomp"]
    closed = list(held.closed)
    return {"held": layers, "unenforced": list(held.unenforced), "missing": list(held.missing), "closed": closed}


# ---- what is said ----------------------------------------------------------------------------------------------------


def _report(output: CommandOutput, schema: str, content: dict[str, Any]) -> None:
    """Write the result as JSON to standard error, because standard output belongs to the code that ran."""
    if output.is_json:
        output.say(json.dumps({"schema": f"democrai-sandbox/{schema}", **content}))


def _say_progress(output: CommandOutput, view: object, fraction: Any, message: Any) -> None:
    """Show the progress of a task."""
    from democrai_sandbox.runtime.extension_run import checked_progress  # noqa: PLC0415 - takes its time

    said = checked_progress(view, fraction, message)
    share = "" if said.fraction is None else f" {said.fraction:.0%}"
    output.say(visible(f"progress:{share} {said.message}".rstrip()), Mood.FAINT)


def say_failure(output: CommandOutput, error: SandboxError, printed: str) -> None:
    """Report the error of a call, after the output of the extension."""
    say_all(output, printed)
    trace = getattr(error, "traceback", "")
    say_all(output, trace or error.diagnostics(), Mood.BAD)
    if trace:
        say_all(output, getattr(error, "advice", ""))


def say_all(output: CommandOutput, text: str, mood: Mood | None = None) -> None:
    """Write a foreign text line by line."""
    for line in text.splitlines():
        output.say(visible(line), mood)
