"""``democrai-sandbox manifest`` and ``shadow``: check, lint and compare manifests; shadow runs of candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.cli.arguments.choices import MANIFEST_KINDS
from democrai_sandbox.errors import CommandMisused, CommandRefused
from democrai_sandbox.policy import Problem

from . import connection, files
from .connection import below
from .output import Exit, Mood, ago, visible, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from democrai_sandbox.manifests import Finding, Manifest, ManifestKind
    from democrai_sandbox.manifests.loader import Located

    from .output import CommandOutput

_MOODS = {"warning": Mood.WARNING, "added": Mood.BAD, "widened": Mood.BAD}


# ---- check -----------------------------------------------------------------------------------------------------------


def run_check(options: argparse.Namespace, output: CommandOutput) -> int:
    """List every problem."""
    from democrai_sandbox.manifests import ManifestError, load_manifest  # noqa: PLC0415 - takes its time

    found = _located(options)
    wrong: dict[str, tuple[Problem, ...]] = {}
    for file, kind in found:
        try:
            load_manifest(file, kind)
        except ManifestError as error:
            wrong[file] = error.problems
    if output.is_json:
        files = [{**_named(one), "problems": [_problem(each) for each in wrong.get(one.file, ())]} for one in found]
        output.data("manifest.check/1", {"ok": not wrong, "files": files})
    for file, problems in wrong.items() if not output.is_json else ():
        for problem in problems:
            output.line(f"{_place(file, problem)}: {visible(_said(problem))}")
    if wrong:
        output.say(f"{_counted(len(found))}, {len(wrong)} with problems", Mood.BAD)
        return Exit.FAILED
    output.say(f"{_counted(len(found))}, no problems", Mood.OK)
    return Exit.OK


def _problem(problem: Problem) -> dict[str, object]:
    return {
        "pointer": problem.pointer,
        "line": getattr(problem, "line", 0),
        "column": getattr(problem, "column", 0),
        "message": problem.message,
        "suggestion": problem.suggestion,
    }


def _place(file: str, problem: Problem) -> str:
    """Return file, line and column in the format of compilers, which editors can open."""
    line = getattr(problem, "line", 0)
    return f"{visible(file)}:{line}:{getattr(problem, 'column', 0)}" if line else visible(file)


def _said(problem: Problem) -> str:
    return str(Problem(problem.pointer, problem.message, problem.suggestion))


# ---- lint ------------------------------------------------------------------------------------------------------------


def run_lint(options: argparse.Namespace, output: CommandOutput) -> int:
    """Warn about overly broad declarations."""
    from democrai_sandbox.manifests import Severity, lint  # noqa: PLC0415 - takes its time

    missing = _unenforced(options.config)
    found = [(one, lint(_loaded(one), unenforced=missing)) for one in _located(options)]
    if output.is_json:
        files = [{**_named(one), "findings": [_finding(each) for each in findings]} for one, findings in found]
        output.data("manifest.lint/1", {"files": files})
    every = [(one, each) for one, findings in found for each in findings]
    for one, each in every if not output.is_json else ():
        where = f"{visible(one.file)}:{each.line}" if each.line else visible(one.file)
        text = f"{each.pointer}: {each.severity}: {each.message} ({each.code}). {each.advice}"
        output.line(f"{where}: {visible(text)}", _MOODS.get(each.severity))
    warnings = sum(each.severity is Severity.WARNING for _, each in every)
    output.say(f"{_counted(len(found))}: {_number(warnings, 'warning')}, {_number(len(every) - warnings, 'notice')}")
    return Exit.FAILED if warnings and options.strict else Exit.OK


def _unenforced(config: str | None) -> tuple[str, ...]:
    """Return what the kernel of this machine would not enforce with a configuration, or with the default one."""
    from democrai_sandbox.host.config import load  # noqa: PLC0415 - takes its time
    from democrai_sandbox.kernel import OsSettings  # noqa: PLC0415
    from democrai_sandbox.kernel.application import unenforced_here  # noqa: PLC0415

    return unenforced_here(OsSettings() if config is None else load(config).settings.os)


def _finding(finding: Finding) -> dict[str, object]:
    return {
        "code": finding.code.value,
        "severity": finding.severity.value,
        "pointer": finding.pointer,
        "line": finding.line,
        "message": finding.message,
        "advice": finding.advice,
    }


# ---- diff ------------------------------------------------------------------------------------------------------------


def run_diff(options: argparse.Namespace, output: CommandOutput) -> int:
    """List the rights that a new version adds and removes."""
    from democrai_sandbox.manifests import diff  # noqa: PLC0415 - takes its time

    old = _one(options.old, options.kind)
    new = _like(old, options.new, options.kind)
    found = diff(_loaded(old), _loaded(new))
    if output.is_json:
        changes = [
            {
                "effect": change.effect.value,
                "adds_power": change.effect.adds_power,
                "pointer": change.pointer,
                "before": list(change.before),
                "after": list(change.after),
            }
            for change in found.changes
        ]
        output.data("manifest.diff/1", {"adds_power": found.adds_power, "changes": changes})
    for change in found.changes if not output.is_json else ():
        output.line(visible(str(change)), _MOODS.get(change.effect))
    if not found.changes:
        output.say("both versions have the same rights")
    return Exit.FAILED if found.adds_power and options.exit_code else Exit.OK


# ---- schema ----------------------------------------------------------------------------------------------------------


def run_schema(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the schema of a kind, or write the schemas of all kinds."""
    from democrai_sandbox.manifests import ManifestKind, manifest_schema  # noqa: PLC0415 - takes its time
    from democrai_sandbox.manifests.schema import schema_text  # noqa: PLC0415

    kinds = [ManifestKind(options.kind)] if options.kind else list(ManifestKind)
    if options.output is not None:
        files = _written(options.output, kinds)
        if output.is_json:
            output.data("manifest.schema/1", {"files": files})
        for file in files if not output.is_json else ():
            output.line(visible(file))
    elif not options.kind:
        raise CommandMisused(
            "the kind of manifest is missing",
            fix=f"name a kind ({', '.join(MANIFEST_KINDS)}), or add --output FOLDER for all",
        )
    elif output.is_json:
        output.data("manifest.schema/1", {"kind": options.kind, "json_schema": manifest_schema(kinds[0])})
    else:
        output.line(schema_text(kinds[0]).rstrip("\n"))
    return Exit.OK


def _written(folder: str, kinds: Iterable[ManifestKind]) -> list[str]:
    from pathlib import Path  # noqa: PLC0415 - takes its time

    from democrai_sandbox.manifests.schema import schema_path, schema_text  # noqa: PLC0415

    if not Path(folder).is_dir():
        raise CommandRefused(f"{visible(folder)} is not a folder", fix="create it first, or name another one")
    written: list[Path] = []
    for kind in kinds:
        written.append(schema_path(kind, Path(folder)))
        written[-1].write_text(schema_text(kind), encoding="utf-8")
    return [str(file) for file in written]


# ---- all -------------------------------------------------------------------------------------------------------------


def _located(options: argparse.Namespace) -> tuple[Located, ...]:
    return _meant(options.places, options.kind)


def _one(place: str, kind: str | None) -> Located:
    found = _meant([place], kind)
    if len(found) > 1:
        raise CommandMisused(f"{visible(place)} contains {len(found)} manifests", fix="name one of them")
    return found[0]


def _like(other: Located, place: str, kind: str | None) -> Located:
    """Return a manifest, with the kind of the other one if it names none, such as a proposal."""
    try:
        return _one(place, kind)
    except CommandMisused:
        return _one(place, other.kind)


def _meant(places: list[str], kind: str | None) -> tuple[Located, ...]:
    from democrai_sandbox.errors import InvalidInputError  # noqa: PLC0415 - see below
    from democrai_sandbox.manifests import ManifestKind  # noqa: PLC0415 - takes its time
    from democrai_sandbox.manifests.loader import locate  # noqa: PLC0415

    try:
        return locate(places, ManifestKind(kind) if kind else None)
    except InvalidInputError as error:
        fix = f"name a manifest or a folder with extensions; --kind sets its kind ({', '.join(MANIFEST_KINDS)})"
        raise CommandMisused(visible(str(error)), fix=fix) from None


def _loaded(one: Located) -> Manifest:
    from democrai_sandbox.manifests import load_manifest  # noqa: PLC0415 - takes its time

    return load_manifest(one.file, one.kind)


def _named(one: Located) -> Mapping[str, Any]:
    return {"file": one.file, "kind": one.kind.value}


def _counted(manifests: int) -> str:
    return _number(manifests, "manifest")


def _number(count: int, one: str) -> str:
    return f"{count} {one if count == 1 else one + 's'}"


_LARGEST = 1024 * 1024
_HEADS = ("OPERATION", "TARGET", "TIMES", "FIRST", "LAST", "FOR", "BY")


def run_start(options: argparse.Namespace, output: CommandOutput) -> int:
    """Start a shadow run."""
    text = _contents(options.manifest)
    node = connection.node(options)
    if not options.dry_run:
        question = f"start a shadow run of {visible(options.subject)} with {visible(options.manifest)} on all nodes?"
        files.confirm(question, yes=options.yes)
    order = {"subject": options.subject, "manifest": text, "dry_run": options.dry_run}
    run = node.post("/shadows", order)
    if output.is_json:
        output.data("shadow.start/1", {**run, "dry_run": options.dry_run})
    elif options.dry_run:
        output.say(f"the candidate for {visible(run['subject'])} is valid; nothing was started")
    else:
        output.line(run["id"])
        output.say(f"shadow run of {visible(run['subject'])} started; see: democrai-sandbox shadow show {run['id']}")
    return Exit.OK


def run_list(options: argparse.Namespace, output: CommandOutput) -> int:
    """List shadow runs."""
    items = connection.node(options).get("/shadows")["items"]
    if output.is_json:
        output.data("shadow.list/1", {"items": items})
    elif items:
        heads = ("ID", "STATE", "SUBJECT", "WOULD BE DENIED", "WOULD BE ALLOWED", "STARTED", "BY")
        output.table(heads, [_row(one) for one in items], {"running": Mood.OK})
    else:
        output.say("no shadow runs yet")
    return Exit.OK


def run_show(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show a shadow run; the exit status is 1 if the candidate would deny an access."""
    run = connection.node(options).get(f"/shadows{below(options.id)}")
    if output.is_json:
        output.data("shadow.show/1", run)
    else:
        _show(output, run)
    return Exit.FAILED if run["would_be_denied"] or run["other_denied"] else Exit.OK


def run_stop(options: argparse.Namespace, output: CommandOutput) -> int:
    """Stop a shadow run."""
    node = connection.node(options)
    run = node.get(f"/shadows{below(options.id)}")
    facts = {name: run[name] for name in ("id", "subject", "is_running", "started_at", "started_by", "ended_at")}
    if run["is_running"] and not options.dry_run:
        files.confirm(f"stop the shadow run of {visible(run['subject'])}?", yes=options.yes)
        facts = node.post(f"/shadows{below(options.id)}/end")
    if output.is_json:
        output.data("shadow.stop/1", {**facts, "dry_run": options.dry_run})
    else:
        would = "would be stopped" if options.dry_run else "was stopped"
        what = would if run["is_running"] else f"already ended {when(run['ended_at'])}"
        output.say(f"the shadow run of {visible(run['subject'])} {what}")
    return Exit.OK


def _row(run: Mapping[str, Any]) -> tuple[object, ...]:
    counts = (run["would_be_denied"], run["would_be_allowed"])
    return (run["id"], _state(run), run["subject"], *counts, ago(run["started_at"]), run["started_by"])


def _state(run: Mapping[str, Any]) -> str:
    return "running" if run["is_running"] else "ended"


def _show(output: CommandOutput, run: Mapping[str, Any]) -> None:
    begun = f"since {when(run['started_at'])}, by {visible(run['started_by'])}"
    output.line(f"shadow run of {visible(run['subject'])}, {_state(run)}, {begun}")
    _findings(output, "would be denied", run["would_be_denied"], run["other_denied"], Mood.BAD)
    _findings(output, "would be allowed", run["would_be_allowed"], run["other_allowed"], Mood.WARNING)
    output.line()
    output.line(
        "differences of the manifests:" if run["changes"] or run["problem"] else "differences of the manifests: none",
        Mood.STRONG,
    )
    if run["problem"]:
        output.line(f"  {visible(run['problem'])}")
    for change in run["changes"]:
        sides = (", ".join(change[side]) for side in ("before", "after"))
        output.line(f"  {change['effect']} {visible(change['pointer'])}: {visible(' -> '.join(filter(None, sides)))}")


def _findings(output: CommandOutput, title: str, found: Sequence[Mapping[str, Any]], others: int, mood: Mood) -> None:
    output.line()
    output.line(f"{title}: {len(found) or 'none observed'}", mood if found else Mood.OK)
    if found:
        output.table(_HEADS, [_shadow_finding(one) for one in found])
    if others:
        output.line(f"and {others} accesses that are not listed")


def _shadow_finding(one: Mapping[str, Any]) -> tuple[object, ...]:
    what = f"{one['resource_type']} {one['operation']}"
    seen = (one["count"], ago(one["first_seen"]), ago(one["last_seen"]))
    return (what, one["target"], *seen, one["user_id"] or "-", " > ".join(one["chain"]))


def _contents(file: str) -> str:
    """Return the text of a file; the node checks it as a manifest."""
    try:
        with open(file, "rb") as stream:  # noqa: PTH123 - a text
            data = stream.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandRefused(f"{visible(file)} cannot be read: {reason}", fix="name the candidate manifest") from None
    try:
        if len(data) > _LARGEST:
            raise CommandRefused(f"{visible(file)} is larger than 1 MiB", fix="name the candidate manifest")
        return data.decode()
    except UnicodeDecodeError:
        raise CommandRefused(f"{visible(file)} is not UTF-8 text", fix="name the candidate manifest") from None
