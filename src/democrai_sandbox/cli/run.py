"""``democrai-sandbox run``: run a script, a module or a program once under a policy."""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from functools import partial
from shutil import which
from tempfile import TemporaryDirectory, gettempdir
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandRefused, ExtensionFailed, KernelUnsupported, SandboxDenied

from .output import Exit, Mood, visible
from .run_options import (
    call,
    environment,
    named,
    parameters,
    protected,
    read_manifest,
    rules_of,
    script_file,
    script_spec,
    surface,
    variables,
)

if TYPE_CHECKING:
    import argparse

    from democrai_sandbox.policy import SandboxError
    from democrai_sandbox.runtime.confinement.process_paths import ProcessRights
    from democrai_sandbox.runtime.single_run import ConfinedRun

    from .output import CommandOutput

_MISSING = "the kernel can allow only existing paths: create it first, or declare its parent folder"
_CLOSED = (
    "no file can be created directly in this folder, because it contains the Python environment of this command. "
    "Declare a folder beside the environment, or move the environment"
)
_SYSTEM = ("PermissionError: [Errno 1]", "PermissionError: [Errno 13]")
_NO_CODE = "the kernel refused this, not the guard: run again with --no-kernel to get the guard's explanation"


# ---- verbs -----------------------------------------------------------------------------------------------------------


def run_script(options: argparse.Namespace, output: CommandOutput) -> int:
    """Run a script."""
    from democrai_sandbox.runtime import single_run  # noqa: PLC0415
    from democrai_sandbox.runtime.confinement.process_paths import ProcessRights  # noqa: PLC0415 - takes its time
    from democrai_sandbox.runtime.recording import Recording  # noqa: PLC0415

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
        services = {"tasks.progress": partial(_say_progress, output)}
        module = ExtensionRun(
            ManifestKind.MODULE,
            options.folder,
            environment=packages,
            env=env,
            protected=shut,
            timeout=options.timeout,
            services=services,
        )
        write = (str(module.data_dir), *temp)
        label, rules = str(module.manifest.subject), rules_of(module.manifest)
        whose = ProcessRights(label, rules, (folder, packages), write, protected=shut, own_temp=bool(temp))
        held = _prepare_kernel_layer(whose, output, stack, kernel=options.kernel)
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


# ---- layers ----------------------------------------------------------------------------------------------------------


def _prepare_kernel_layer(
    whose: ProcessRights, output: CommandOutput, stack: ExitStack, *, kernel: bool | None
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
    _say_layers(output, held)
    return held


def _say_layers(output: CommandOutput, held: ConfinedRun) -> None:
    output.say(f"enforced by: {', '.join(_layers(held)['held'])}", Mood.FAINT)
    for text in held.unenforced:
        output.say(f"not enforced by the kernel: {visible(text)}", Mood.FAINT)
    for path in held.closed:
        output.say(f"blocked by the kernel: {visible(path)}: {_CLOSED}", Mood.WARNING)
    for path in held.missing:
        output.say(f"blocked by the kernel: {visible(path)} does not exist; {_MISSING}", Mood.WARNING)


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
