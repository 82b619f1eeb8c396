"""``democrai-sandbox record``: observe code and propose the smallest manifest."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox import errors

from . import run
from .entry_check import RecordedRun, RunFunctions, check
from .files import READABLE, confirm_replacing, open_text, write_whole
from .output import CommandOutput, Exit, Mood, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from democrai_sandbox.manifests import Manifest
    from democrai_sandbox.manifests.proposal import Proposal, Suggestion
    from democrai_sandbox.policy import AccessRule
    from democrai_sandbox.runtime.extension_run import Recording

    from .entry_check import EntryChecks

_MOODS = {"declared": Mood.OK, "not declared": Mood.WARNING, "not used": Mood.FAINT, "never": Mood.BAD}
_FOLDER = "created by the run; under the kernel layer, declare its parent folder instead"


def report(
    options: argparse.Namespace,
    output: CommandOutput,
    manifest: Manifest,
    runs: RunFunctions,
    *,
    pointer: str = "",
    granted: tuple[AccessRule, ...] = (),
    bare: bool = False,
) -> int:
    """Run the code and report; ``bare`` for a file that has only declarations."""
    for file in filter(None, (options.output, options.trace)):
        confirm_replacing(file, yes=options.yes)
    seen = runs.observe()
    if options.trace:
        _write(options.trace, "".join(f"{line}\n" for line in seen.recording.lines()))
    suggested = partial(_suggested, seen.recording, manifest, options, pointer=pointer, granted=granted)
    checked = check(seen, suggested(), runs, partial(suggested, with_looks=True), wanted=options.check)
    output.progress("")
    suggestion = checked.suggestion
    failed = seen.status != Exit.OK or bool(checked.missing)
    if output.is_json:
        content = _content(seen.recording, suggestion, bare=bare)
        output.data(f"record.{options.verb}/1", {"status": seen.status, **content, **_check_content(checked)})
    else:
        _report_proposal(options, output, seen, checked)
    text = json.dumps(_value(suggestion, bare=bare), indent=2) + "\n"
    if options.output:
        _write(options.output, text)
        output.say(f"written: {visible(options.output)}", Mood.OK)
    elif not output.is_json:
        output.line(text.rstrip("\n"))
    return Exit.FAILED if failed else Exit.OK


def _suggested(recording: Recording, manifest: Manifest, options: argparse.Namespace, **more: Any) -> Suggestion:
    from democrai_sandbox.manifests import ManifestError  # noqa: PLC0415 - takes its time

    try:
        return recording.suggestion(manifest, most=options.generalise, **more)
    except ManifestError as error:  # the manifest that would be proposed
        problem = "; ".join(one.message for one in error.problems)
        raise errors.CommandRefused(
            f"the observations do not fit into a manifest: {problem}", fix="combine more of them: --generalise 10"
        ) from None


# ---- for people ------------------------------------------------------------------------------------------------------


def _report_proposal(
    options: argparse.Namespace, output: CommandOutput, seen: RecordedRun, checked: EntryChecks
) -> None:
    suggestion = checked.suggestion
    # A pipe gets the manifest only.
    beside = output if options.output else CommandOutput(out=sys.stderr)
    rows = list(_rows(seen.recording, suggestion))
    if rows:
        beside.table(("OPERATION", "TARGET", "MANIFEST", "CALLS", "FROM"), rows, _MOODS)
    else:
        output.say("no access beyond its own files and runtime paths was observed")
    for remark in _remarks(suggestion):
        output.say(visible(remark), Mood.WARNING)
    if seen.status != Exit.OK:
        output.say(f"it ended with status {seen.status}: later accesses were not observed", Mood.BAD)
    # Without an entry, the paths look absent to the libraries that probed them.
    left = [one.target for one in seen.recording.looked_by_libraries if not suggestion.proposal.allows(one)]
    if left:
        output.say(f"omitted, because libraries only probed it: {visible(_counted(left))}", Mood.FAINT)
    _tell_check(output, seen, checked)
    _tell_necessity(output, checked)


def _tell_check(output: CommandOutput, seen: RecordedRun, checked: EntryChecks) -> None:
    for text in checked.missing or ():
        output.say(f"denied under the proposal: {visible(text)}", Mood.BAD)
    if checked.missing == () and seen.status != Exit.OK:
        output.say("it ends the same way under the proposal", Mood.WARNING)
    elif checked.missing == ():
        output.say("it runs under the proposal", Mood.OK)
    for text in checked.left_out:
        output.say(f"removed, because it also runs without: {visible(text)}", Mood.OK)


def _tell_necessity(output: CommandOutput, checked: EntryChecks) -> None:
    """Report the number of unverified entries, the reason and the fix; the manifest names each of them."""
    proposal = checked.suggestion.proposal
    every, unverified = len(proposal.uses), len(proposal.unverified)
    if unverified:
        output.say(
            f'not verified as necessary, and listed under "review": {unverified} of {every} operations and imports, '
            f"because {checked.untried}",
            Mood.WARNING,
        )
        output.say(f"to verify: {checked.fix}", Mood.FAINT)
    elif every:
        result = " or has another result" if any(proposal.proof(use) == "differs" for use in proposal.uses) else ""
        output.say(f"each entry is necessary: without it, the run fails{result}", Mood.OK)


def _remarks(suggestion: Suggestion) -> Iterator[str]:
    """Yield the notes about a proposal."""
    notes: dict[str, list[str]] = {}
    for entry in suggestion.proposal.entries:
        for note in entry.notes:
            notes.setdefault(note, []).append(entry.target)
    for note, targets in notes.items():
        yield f"wider than its use: {_counted(targets)}: {note}"
    yield from map(str, suggestion.findings)
    # Created files that are declared one by one may not exist at the next run.
    entries = (entry for entry in suggestion.proposal.entries if "create" in entry.operations)
    if made := [entry.target for entry in entries if not os.path.isdir(entry.target)]:  # noqa: PTH112 - a text
        yield f"{_counted(made)}: {_FOLDER}"


def _counted(texts: list[str]) -> str:
    """Return the first of some texts, and the number of the others."""
    return f"{texts[0]} and {len(texts) - 1} more" if len(texts) > 1 else texts[0]


def _rows(recording: Recording, suggestion: Suggestion) -> Iterator[tuple[object, ...]]:
    for one in sorted(recording.accesses):
        where = "declared" if suggestion.is_declared(one) else "not declared"
        yield one.operation, one.target, where, recording.times(one), _first(recording.places(one))
    for root in suggestion.proposal.allowed_imports:
        where = "declared" if root in suggestion.declared_imports else "not declared"
        yield "import", root, where, "", _first(recording.import_places(root))
    for rule in suggestion.unused:
        yield rule.operation, rule.normalized_target, "not used", "", ""
    for denial in recording.denied.values():
        yield denial.operation, denial.target, "never", "", denial.code


def _first(places: tuple[str, ...]) -> str:
    """Return the first place, with the name of its file."""
    return os.path.basename(places[0]) if places else ""  # noqa: PTH119 - a text


# ---- for programs ----------------------------------------------------------------------------------------------------


def _content(recording: Recording, suggestion: Suggestion, *, bare: bool) -> dict[str, Any]:
    return {
        "subject": str(suggestion.manifest.subject),
        "observed": list(_observed(recording, suggestion)),
        "proposed": list(_proposed(suggestion.proposal)),
        "imports": list(suggestion.proposal.allowed_imports),
        "not_needed": [one._asdict() for one in sorted(recording.idle)],
        "only_looked_at": [one._asdict() for one in sorted(recording.looked_by_libraries)],
        "not_used": [rule.to_dict() for rule in suggestion.unused],
        "denied": [str(denial) for denial in recording.denied.values()],
        "notes": [
            {"target": entry.target, "notes": list(entry.notes)} for entry in suggestion.proposal.entries if entry.notes
        ],
        "findings": [str(finding) for finding in suggestion.findings],
        "manifest": _value(suggestion, bare=bare),
    }


def _observed(recording: Recording, suggestion: Suggestion) -> Iterator[dict[str, Any]]:
    for one in sorted(recording.accesses):
        counted = {"times": recording.times(one), "declared": suggestion.is_declared(one)}
        yield {**one._asdict(), **counted, "places": list(recording.places(one))}


def _proposed(proposal: Proposal) -> Iterator[dict[str, Any]]:
    """Yield each operation of each entry, and each import, with its necessity and width."""
    notes = {use: list(entry.notes) for entry in proposal.entries for use in entry.uses}
    for use in proposal.uses:
        proof = proposal.proof(use)
        verified = {"verified": proof is not proof.NOT_VERIFIED, "without_it": proof.value}
        yield {**use._asdict(), **verified, "wider": notes.get(use, [])}


def _check_content(checked: EntryChecks) -> dict[str, Any]:
    unverified = [str(use) for use in checked.suggestion.proposal.unverified]
    necessity = {"tried": not checked.untried, "reason": checked.untried, "fix": checked.fix}
    necessity |= {"left_out": list(checked.left_out), "unverified": unverified}
    done = None if checked.missing is None else {"missing": list(checked.missing)}
    return {"check": done, "necessity": necessity}


def _value(suggestion: Suggestion, *, bare: bool) -> dict[str, Any]:
    return {name: value for name, value in suggestion.value.items() if not (bare and name == "name")}


def _write(file: str, text: str) -> None:
    with write_whole(file, fix="name another file", mode=READABLE) as stream:
        stream.write(text.encode())


_AGAIN = "running it again"
_MOST_WRITTEN = 1024 * 1024


def run_script(options: argparse.Namespace, output: CommandOutput) -> int:
    """Record a script."""
    from democrai_sandbox.runtime import single_run  # noqa: PLC0415 - takes its time
    from democrai_sandbox.runtime.extension_run import Recording  # noqa: PLC0415

    file, shut = run.script_file(options), run.protected(options)
    manifest, bare = run.read_manifest(options.manifest, run.named(file))

    def run_visibly(under: Manifest | None = None) -> RecordedRun:
        """Run it with its output on standard error, because standard output is for the proposal."""
        spec = run.script_spec(options, file, under or manifest, shut, observe=under is None)
        recording = Recording()
        status = single_run.run_script(spec, options.arguments, recording, timeout=options.timeout, streams=(0, 2, 2))
        return RecordedRun(recording, status)

    def run_quietly(under: Manifest) -> RecordedRun:
        """Run it without input, and capture its output."""
        output.progress(_AGAIN)
        spec, recording = run.script_spec(options, file, under, shut), Recording()
        status: int = Exit.FAILED
        with TemporaryFile() as written, Path(os.devnull).open("r+b", buffering=0) as nowhere:
            streams = (nowhere.fileno(), written.fileno(), nowhere.fileno())
            with suppress(errors.CallTimeout):
                status = single_run.run_script(
                    spec, options.arguments, recording, timeout=options.timeout, streams=streams
                )
            written.seek(0)
            return RecordedRun(recording, status, written.read(_MOST_WRITTEN))

    return report(options, output, manifest, RunFunctions(run_visibly, run_visibly, run_quietly), bare=bare)


class _RecordedExtension(NamedTuple):
    """Recorded extension."""

    options: argparse.Namespace
    output: CommandOutput
    manifest: Manifest
    folder: str
    scratch: str
    """Temporary folder of this command."""


def run_extension(options: argparse.Namespace, output: CommandOutput) -> int:
    """Record an extension: its import and a call, or its installation."""
    from democrai_sandbox.manifests import FILE_NAME, ManifestKind, load_manifest  # noqa: PLC0415 - takes its time

    folder = os.path.realpath(options.folder)
    name = os.path.basename(os.path.abspath(options.folder))  # noqa: PTH100, PTH119 - as a host names it
    manifest = load_manifest(f"{folder}/{FILE_NAME}", ManifestKind(options.verb), name=name)
    with TemporaryDirectory(prefix="record-") as scratch:
        subject = _RecordedExtension(options, output, manifest, folder, scratch)
        if getattr(options, "phase", "") == "install":
            install = partial(_installed, subject)
            runs = RunFunctions(install, install, once="an installation is not repeated for each entry")
            return report(options, output, manifest, runs, pointer="/install")
        pointer = "/runtime" if "/runtime" in manifest.sections else ""
        granted = run.configured(options, manifest)
        packages = run.environment(options) or _requirements(subject)
        call_it = partial(_called, subject, packages)
        runs = RunFunctions(call_it, call_it, partial(call_it, quiet=True))
        return report(options, output, manifest, runs, pointer=pointer, granted=granted)


def _called(
    subject: _RecordedExtension, packages: str, under: Manifest | None = None, *, quiet: bool = False
) -> RecordedRun:
    """Import an extension and make the call, under a manifest or observed."""
    from democrai_sandbox.runtime.extension_run import ExtensionRun  # noqa: PLC0415 - takes its time

    options, output, manifest, folder, _ = subject
    if quiet:
        output.progress(_AGAIN)
    settings = run.settings_of(options)
    extension = ExtensionRun(
        manifest.kind,
        folder,
        observe=under is None,
        manifest=under or manifest,
        environment=packages,
        env=run.variables(options.env),
        protected=run.protected(options),
        timeout=options.timeout,
        approve=[rule.to_dict() for rule in run.configured(options, manifest)],
        services={"engines.settings": lambda _view: settings},
    )
    if under is not None:
        extension.start_by(None, None)
    try:
        with extension:
            result = run.call(extension, run.surface(options), run.parameters(options))
    except errors.SandboxError as error:
        if not quiet and not isinstance(error, errors.SandboxDenied | errors.ExtensionFailed | errors.CallTimeout):
            raise
        if not quiet:
            run.say_failure(output, error, extension.printed)
        return RecordedRun(extension.recording, Exit.FAILED)
    if not quiet:
        run.say_all(output, extension.printed)
    return RecordedRun(extension.recording, Exit.OK, result)


def _requirements(subject: _RecordedExtension) -> str:
    """Install the requirements of an extension once; return an empty text if it has none."""
    from democrai_sandbox.runtime.installs.installer import install_once  # noqa: PLC0415 - takes its time

    options, output, manifest, folder, scratch = subject
    install: Any = manifest.sections.get("/install")
    if install is None or not install.requirements:
        return ""
    output.progress("installing requirements")
    found = install_once(manifest, folder, f"{scratch}/data", protected=run.protected(options))
    output.progress("")
    return found


def _installed(subject: _RecordedExtension, under: Manifest | None = None) -> RecordedRun:
    """Install an extension, under a manifest or with its HTTP requests observed.

    Files are checked against the manifest in both cases: pip probes many files that it does not need.
    """
    from democrai_sandbox.manifests.proposal import section_of  # noqa: PLC0415 - takes its time
    from democrai_sandbox.runtime.extension_run import Installation, Recording  # noqa: PLC0415
    from democrai_sandbox.runtime.installs.installer import install_once, without_requests  # noqa: PLC0415

    options, output, manifest, folder, scratch = subject
    recording = Recording()
    wanted = under or without_requests(manifest)
    for rule in section_of(wanted, "/install").access if under is None else ():
        recording.notice((rule.resource_type.value, rule.operation.value, rule.normalized_target))
    place = f"{scratch}/{'observed' if under is None else 'checked'}"
    decider = Installation(recording) if under is None else None
    try:
        install_once(wanted, folder, place, decider=decider, protected=run.protected(options), timeout=options.timeout)
    except errors.InstallFailed as error:
        run.say_all(output, error.diagnostics(), Mood.BAD)
        return RecordedRun(recording, Exit.FAILED)
    return RecordedRun(recording, Exit.OK)


def run_suggest(options: argparse.Namespace, output: CommandOutput) -> int:
    """Propose a manifest from traces."""
    from democrai_sandbox.runtime.extension_run import Recording  # noqa: PLC0415 - takes its time

    recording = Recording()
    for trace in options.traces:
        with open_text(trace, fix="name a file written by record --trace FILE") as lines:
            recording.read(lines)
    manifest, bare = run.read_manifest(options.manifest, run.named(os.path.realpath(options.traces[0])))
    seen = RecordedRun(recording, Exit.OK)
    runs = RunFunctions(lambda: seen, None, once="a trace cannot be run")
    return report(options, output, manifest, runs, bare=bare)
