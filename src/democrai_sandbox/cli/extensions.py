"""Commands about extensions: ``extensions``, ``mcp`` and ``models`` of a node, ``manifest``, and ``shadow`` runs."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.cli.arguments.choices import MANIFEST_KINDS
from democrai_sandbox.cli.arguments.options import written_value
from democrai_sandbox.errors import CommandMisused, CommandRefused
from democrai_sandbox.policy import Problem

from . import connection, files
from .connection import below
from .output import Exit, Mood, ago, plural, visible, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Mapping, Sequence

    from democrai_sandbox.manifests import Finding, Manifest, ManifestKind
    from democrai_sandbox.manifests.loader import Located

    from .connection import NodeClient
    from .output import CommandOutput

_EXTENSION_HEADS = ("KIND", "NAME", "STATE", "VERSION", "RUNS", "PROBLEMS")
_MOODS = {"ok": Mood.OK, "broken": Mood.BAD, "not_installed": Mood.WARNING, "outdated": Mood.WARNING}
_PAUSE = 0.5


def run_list(options: argparse.Namespace, output: CommandOutput) -> int:
    """List extensions."""
    items = connection.node(options).get("/extensions")["items"]
    if not output.data("extensions.list/1", {"items": items}):
        shown = ("kind", "name", "state", "version", "mode", "problem_count")
        rows = [[one[name] or "-" for name in shown] for one in items]
        empty = "no extension was found; set modules_path, engines_path or extractors_path in the configuration"
        output.table(_EXTENSION_HEADS, rows, _MOODS, empty=empty)
    return Exit.OK


def run_install(options: argparse.Namespace, output: CommandOutput) -> int:
    """Install an engine or extractor; the exit status is that of the installation."""
    node, place = connection.node(options), _extension_path(options.subject)
    status = node.post(f"{place}/install", {"again": options.again})
    if not options.no_wait:
        status = _waited(node, place, output)
    is_there = status["state"] == "ready" and not status["problem"]
    if output.is_json:
        output.data("extensions.install/1", {"subject": options.subject, **status})
    elif is_there:
        output.say(f"{visible(options.subject)} is installed")
    elif options.no_wait:
        output.say(f"{visible(options.subject)} is being installed")
    else:
        output.say(f"{visible(options.subject)} could not be installed", Mood.BAD)
        for line in str(status["problem"] or "the log of the node has the reason").splitlines():
            output.say(f"  {visible(line)}")
    return Exit.OK if options.no_wait or is_there else Exit.FAILED


def _waited(node: NodeClient, place: str, output: CommandOutput) -> dict[str, Any]:
    """Wait for an installation, show its progress, and return the exit status."""
    while True:
        status: dict[str, Any] = node.get(place)["install"] or {"state": "missing", "problem": "", "progress": None}
        if status["state"] != "installing":
            return status
        step = status["progress"]
        if step is not None:
            output.progress(visible(f"{step['stage']} {step['text']}"))
        time.sleep(_PAUSE)


def run_settings(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show settings."""
    found = connection.node(options).get(f"{_extension_path(options.subject)}/settings")
    _show_extensions(output, "settings", options.subject, found)
    return Exit.OK


def run_set(options: argparse.Namespace, output: CommandOutput) -> int:
    """Change settings."""
    wanted = {name: written_value(text) for name, text in options.values}
    if not wanted and not options.unset and not options.secret:
        raise CommandMisused("no change was given", fix="give NAME=VALUE, --secret or --unset")
    node = connection.node(options)
    names = [*wanted, *([options.secret] if options.secret else []), *(f"no {name}" for name in options.unset)]
    files.confirm(f"change settings of {visible(options.subject)}: {visible(', '.join(names))}?", yes=options.yes)
    if options.secret:
        name = visible(options.secret)
        wanted[options.secret] = _filled(files.secret(f"{name}: "), name, "use --unset to remove it")
    found = node.patch(f"{_extension_path(options.subject)}/settings", {"set": wanted, "unset": options.unset})
    _show_extensions(output, "set", options.subject, found)
    return Exit.OK


def _filled(secret: str, what: str, fix: str) -> str:
    """Return a secret that is not empty."""
    if not secret:
        raise CommandRefused(f"{what} is empty, and nothing was changed", fix=fix)
    return secret


def _show_extensions(output: CommandOutput, verb: str, subject: str, found: Mapping[str, Any]) -> None:
    if output.data(f"extensions.{verb}/1", {"subject": subject, **found}):
        return
    settings = sorted(found["settings"].items())
    rows = [(name, text if isinstance(text, str) else json.dumps(text, ensure_ascii=False)) for name, text in settings]
    output.table(("NAME", "VALUE"), rows, empty=f"no settings for {visible(subject)}")
    if found["source"] == "configuration":
        output.say("set in the configuration; change them there")


def _extension_path(subject: str) -> str:
    kind, _, name = subject.partition(":")
    return f"/extensions{below(kind, name)}"


def _confirmed_node(options: argparse.Namespace, question: str) -> NodeClient:
    """Return the node after a confirmation."""
    node = connection.node(options)
    files.confirm(question, yes=options.yes)
    return node


def _remove(schema: str, path: str, options: argparse.Namespace, output: CommandOutput) -> int:
    """Remove a server or a model."""
    node = _confirmed_node(options, f"remove {_NOUNS[schema.partition('.')[0]]} {visible(options.name)}?")
    return _report(output, schema, node.delete(f"{path}{below(options.name)}"), "is removed")


_NOUNS = {"mcp": "MCP server", "models": "model"}
run_remove_server = partial(_remove, "mcp.remove/1", "/mcp-servers")
run_remove_model = partial(_remove, "models.remove/1", "/models")


def _report(output: CommandOutput, schema: str, item: Mapping[str, Any], what: str) -> int:
    if not output.data(schema, item):
        output.say(f"{_NOUNS[schema.partition('.')[0]]} {visible(item['name'])} {what}")
    return Exit.OK


def _given(**values: Any) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


_SERVER_HEADS = ("NAME", "STATE", "TRANSPORT", "TIMEOUT", "ENDPOINT", "SET IN")


def run_list_servers(options: argparse.Namespace, output: CommandOutput) -> int:
    """List servers."""
    found = connection.node(options).get("/mcp-servers")
    if not output.data("mcp.list/1", found):
        empty = "no MCP server is registered; democrai-sandbox mcp add registers one"
        output.table(_SERVER_HEADS, [_server_row(one) for one in found["items"]], {"enabled": Mood.OK}, empty=empty)
        if found["approval"] == "required":
            output.say("each endpoint also needs an approval (extensions.mcp.approval is required)")
    return Exit.OK


def run_add_server(options: argparse.Namespace, output: CommandOutput) -> int:
    """Register a server."""
    node = _confirmed_node(options, f"register MCP server {visible(options.name)} at {visible(options.endpoint)}?")
    order = {"name": options.name, **_server_facts(options), "enabled": not options.disabled}
    return _report(output, "mcp.add/1", node.post("/mcp-servers", order), "is registered")


def run_change_server(options: argparse.Namespace, output: CommandOutput) -> int:
    """Change a server."""
    changes = _server_facts(options)
    if options.enable or options.disable:
        changes["enabled"] = bool(options.enable)
    if not changes:
        raise CommandMisused("no change was given", fix="add --endpoint, --enable, --disable or another option")
    words = ", ".join(f"{name} {value}" for name, value in changes.items())
    node = _confirmed_node(options, f"change MCP server {visible(options.name)}: {visible(words)}?")
    changed = node.patch(f"/mcp-servers{below(options.name)}", changes)
    return _report(output, "mcp.change/1", changed, "is changed")


def _server_facts(options: argparse.Namespace) -> dict[str, Any]:
    return _given(endpoint_url=options.endpoint, transport=options.transport, timeout_ms=options.timeout_ms)


def _server_row(server: Mapping[str, Any]) -> tuple[object, ...]:
    state = "enabled" if server["enabled"] else "disabled"
    timeout = f"{server['timeout_ms'] / 1000:g} s"
    return (server["name"], state, server["transport"], timeout, server["endpoint_url"], server["source"])


_MODEL_HEADS = ("NAME", "STATE", "ADDRESS", "KEY", "AGENTS", "SET IN")
_LONGEST_KEY = 4096


def run_list_models(options: argparse.Namespace, output: CommandOutput) -> int:
    """List models; the exit status is 1 if one is missing."""
    items = connection.node(options).get("/models")["items"]
    missing = [one["name"] for one in items if not one["is_configured"]]
    if not output.data("models.list/1", {"items": items}):
        moods = {"configured": Mood.OK, "missing": Mood.BAD}
        empty = "no models yet, and no agent uses one; democrai-sandbox models add adds one"
        output.table(_MODEL_HEADS, [_model_row(one) for one in items], moods, empty=empty)
        for name in missing:
            output.say(f"to fix it: democrai-sandbox models add {visible(name)} --endpoint URL --model TEXT")
    return Exit.FAILED if missing else Exit.OK


def run_add_model(options: argparse.Namespace, output: CommandOutput) -> int:
    """Add a model."""
    node = _confirmed_node(options, f"add model {visible(options.name)} at {visible(options.endpoint)}?")
    order = {"name": options.name, **_model_facts(options), **_model_key(options)}
    return _report(output, "models.add/1", node.post("/models", order), "is added")


def run_change_model(options: argparse.Namespace, output: CommandOutput) -> int:
    """Change a model."""
    changes = _model_facts(options)
    names = [*changes, *(["api_key"] if options.ask_key or options.api_key_file or options.no_key else [])]
    if not names:
        raise CommandMisused("no change was given", fix="add --endpoint, --model, --ask-key or another option")
    node = _confirmed_node(options, f"change model {visible(options.name)}: {', '.join(names)}?")
    changed = node.patch(f"/models{below(options.name)}", {**changes, **_model_key(options)})
    return _report(output, "models.change/1", changed, "is changed")


def _model_facts(options: argparse.Namespace) -> dict[str, Any]:
    timeout = None if options.timeout_ms is None else options.timeout_ms / 1000
    chosen = {name: written_value(text) for name, text in options.option} or None
    return _given(endpoint=options.endpoint, model=options.model, timeout_seconds=timeout, options=chosen)


def _model_key(options: argparse.Namespace) -> dict[str, str]:
    """Return the key to send, or an empty dict if no key was given."""
    if options.no_key:
        return {"api_key": ""}
    if options.api_key_file is None and not options.ask_key:
        return {}
    key = files.secret("API key: ") if options.api_key_file is None else _first_line(options.api_key_file)
    return {"api_key": _filled(key, "the key", "remove the option for a model without a key")}


def _first_line(file: str) -> str:
    try:
        with Path(file).open("rb") as stream:
            return stream.readline(_LONGEST_KEY + 1).decode("ascii", "replace").strip()
    except OSError as error:
        raise CommandRefused(f"{visible(file)} cannot be read: {error.strerror}", fix="name another file") from None


def _model_row(model: Mapping[str, Any]) -> tuple[object, ...]:
    state = "configured" if model["is_configured"] else "missing"
    key = "yes" if model["has_key"] else "-"
    agents = ", ".join(model["agents"]) or "-"
    return (model["name"], state, model["target"] or "-", key, agents, model["source"] or "-")


_PROBLEM = ("pointer", "line", "column", "message", "suggestion")
_FINDING = ("code", "severity", "pointer", "line", "message", "advice")
_CHANGE_MOODS = {"warning": Mood.WARNING, "added": Mood.BAD, "widened": Mood.BAD}


def run_check(options: argparse.Namespace, output: CommandOutput) -> int:
    """List every problem."""
    from democrai_sandbox.manifests import ManifestError, load_manifest  # noqa: PLC0415 - takes its time

    found = _located(options.places, options.kind)
    wrong: dict[str, tuple[Problem, ...]] = {}
    for file, kind in found:
        try:
            load_manifest(file, kind)
        except ManifestError as error:
            wrong[file] = error.problems
    listed = [
        {**_named(one), "problems": [_members(each, _PROBLEM) for each in wrong.get(one.file, ())]} for one in found
    ]
    if not output.data("manifest.check/1", {"ok": not wrong, "files": listed}):
        for file, problems in wrong.items():
            for problem in problems:
                said = Problem(problem.pointer, problem.message, problem.suggestion)
                output.line(f"{_place(file, problem)}: {visible(str(said))}")
    counted = f"{len(wrong)} with problems" if wrong else "no problems"
    output.say(f"{plural(len(found), 'manifest')}, {counted}", Mood.BAD if wrong else Mood.OK)
    return Exit.FAILED if wrong else Exit.OK


def _members(found: Problem | Finding, names: tuple[str, ...]) -> dict[str, object]:
    """Return attributes as JSON data; a problem without a position is at line 0."""
    return {name: getattr(found, name, 0) for name in names}


def _place(file: str, problem: Problem) -> str:
    """Return file, line and column in the format of compilers, which editors can open."""
    line = getattr(problem, "line", 0)
    return f"{visible(file)}:{line}:{getattr(problem, 'column', 0)}" if line else visible(file)


def run_lint(options: argparse.Namespace, output: CommandOutput) -> int:
    """Warn about overly broad declarations."""
    from democrai_sandbox.manifests import Severity, lint  # noqa: PLC0415 - takes its time

    missing = _unenforced(options.config)
    found = [(one, lint(_loaded(one), unenforced=missing)) for one in _located(options.places, options.kind)]
    listed = [{**_named(one), "findings": [_members(each, _FINDING) for each in findings]} for one, findings in found]
    every = [(one, each) for one, findings in found for each in findings]
    for one, each in every if not output.data("manifest.lint/1", {"files": listed}) else ():
        where = f"{visible(one.file)}:{each.line}" if each.line else visible(one.file)
        text = f"{each.pointer}: {each.severity}: {each.message} ({each.code}). {each.advice}"
        output.line(f"{where}: {visible(text)}", _CHANGE_MOODS.get(each.severity))
    warnings = sum(each.severity is Severity.WARNING for _, each in every)
    output.say(
        f"{plural(len(found), 'manifest')}: {plural(warnings, 'warning')}, {plural(len(every) - warnings, 'notice')}"
    )
    return Exit.FAILED if warnings and options.strict else Exit.OK


def _unenforced(config: str | None) -> tuple[str, ...]:
    """Return what the kernel of this machine would not enforce with a configuration, or with the default one."""
    from democrai_sandbox.host.config import load  # noqa: PLC0415 - takes its time
    from democrai_sandbox.kernel import OsSettings  # noqa: PLC0415
    from democrai_sandbox.kernel.application import unenforced_here  # noqa: PLC0415

    return unenforced_here(OsSettings() if config is None else load(config).settings.os)


def run_diff(options: argparse.Namespace, output: CommandOutput) -> int:
    """List the rights that a new version adds and removes."""
    from democrai_sandbox.manifests import diff  # noqa: PLC0415 - takes its time

    old = _one(options.old, options.kind)
    new = _like(old, options.new, options.kind)
    found = diff(_loaded(old), _loaded(new))
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
    if not output.data("manifest.diff/1", {"adds_power": found.adds_power, "changes": changes}):
        for change in found.changes:
            output.line(visible(str(change)), _CHANGE_MOODS.get(change.effect))
    if not found.changes:
        output.say("both versions have the same rights")
    return Exit.FAILED if found.adds_power and options.exit_code else Exit.OK


def run_schema(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the schema of a kind, or write the schemas of all kinds."""
    from democrai_sandbox.manifests import ManifestKind, manifest_schema  # noqa: PLC0415 - takes its time
    from democrai_sandbox.manifests.schema import schema_text  # noqa: PLC0415

    kinds = [ManifestKind(options.kind)] if options.kind else list(ManifestKind)
    if options.output is not None:
        written = _written(options.output, kinds)
        if not output.data("manifest.schema/1", {"files": written}):
            for file in written:
                output.line(visible(file))
    elif not options.kind:
        raise CommandMisused(
            "the kind of manifest is missing",
            fix=f"name a kind ({', '.join(MANIFEST_KINDS)}), or add --output FOLDER for all",
        )
    elif not output.data("manifest.schema/1", {"kind": options.kind, "json_schema": manifest_schema(kinds[0])}):
        output.line(schema_text(kinds[0]).rstrip("\n"))
    return Exit.OK


def _written(folder: str, kinds: Iterable[ManifestKind]) -> list[str]:
    from democrai_sandbox.manifests.schema import schema_path, schema_text  # noqa: PLC0415 - takes its time

    if not Path(folder).is_dir():
        raise CommandRefused(f"{visible(folder)} is not a folder", fix="create it first, or name another one")
    written: list[Path] = []
    for kind in kinds:
        written.append(schema_path(kind, Path(folder)))
        written[-1].write_text(schema_text(kind), encoding="utf-8")
    return [str(file) for file in written]


def _one(place: str, kind: str | None) -> Located:
    found = _located([place], kind)
    if len(found) > 1:
        raise CommandMisused(f"{visible(place)} contains {len(found)} manifests", fix="name one of them")
    return found[0]


def _like(other: Located, place: str, kind: str | None) -> Located:
    """Return a manifest, with the kind of the other one if it names none, such as a proposal."""
    try:
        return _one(place, kind)
    except CommandMisused:
        return _one(place, other.kind)


def _located(places: list[str], kind: str | None) -> tuple[Located, ...]:
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


_LARGEST = 1024 * 1024
_HEADS = ("OPERATION", "TARGET", "TIMES", "FIRST", "LAST", "FOR", "BY")


def run_start(options: argparse.Namespace, output: CommandOutput) -> int:
    """Start a shadow run."""
    text = _contents(options.manifest)
    node = connection.node(options)
    if not options.dry_run:
        question = f"start a shadow run of {visible(options.subject)} with {visible(options.manifest)} on all nodes?"
        files.confirm(question, yes=options.yes)
    run = node.post("/shadows", {"subject": options.subject, "manifest": text, "dry_run": options.dry_run})
    if output.data("shadow.start/1", {**run, "dry_run": options.dry_run}):
        return Exit.OK
    if options.dry_run:
        output.say(f"the candidate for {visible(run['subject'])} is valid; nothing was started")
    else:
        output.line(run["id"])
        output.say(f"shadow run of {visible(run['subject'])} started; see: democrai-sandbox shadow show {run['id']}")
    return Exit.OK


def run_list_shadows(options: argparse.Namespace, output: CommandOutput) -> int:
    """List shadow runs."""
    items = connection.node(options).get("/shadows")["items"]
    if not output.data("shadow.list/1", {"items": items}):
        heads = ("ID", "STATE", "SUBJECT", "WOULD BE DENIED", "WOULD BE ALLOWED", "STARTED", "BY")
        output.table(heads, [_row(one) for one in items], {"running": Mood.OK}, empty="no shadow runs yet")
    return Exit.OK


def run_show(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show a shadow run; the exit status is 1 if the candidate would deny an access."""
    run = connection.node(options).get(f"/shadows{below(options.id)}")
    if not output.data("shadow.show/1", run):
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
    if not output.data("shadow.stop/1", {**facts, "dry_run": options.dry_run}):
        would = "would be stopped" if options.dry_run else "was stopped"
        what = would if run["is_running"] else f"already ended {when(run['ended_at'])}"
        output.say(f"the shadow run of {visible(run['subject'])} {what}")
    return Exit.OK


def _row(run: Mapping[str, Any]) -> tuple[object, ...]:
    state = "running" if run["is_running"] else "ended"
    counts = (run["would_be_denied"], run["would_be_allowed"])
    return (run["id"], state, run["subject"], *counts, ago(run["started_at"]), run["started_by"])


def _show(output: CommandOutput, run: Mapping[str, Any]) -> None:
    begun = f"since {when(run['started_at'])}, by {visible(run['started_by'])}"
    state = "running" if run["is_running"] else "ended"
    output.line(f"shadow run of {visible(run['subject'])}, {state}, {begun}")
    _findings(output, "would be denied", run["would_be_denied"], run["other_denied"], Mood.BAD)
    _findings(output, "would be allowed", run["would_be_allowed"], run["other_allowed"], Mood.WARNING)
    output.line()
    none = "" if run["changes"] or run["problem"] else " none"
    output.line(f"differences of the manifests:{none}", Mood.STRONG)
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
