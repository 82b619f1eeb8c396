"""``democrai-sandbox shadow``: manage shadow runs of candidate manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandRefused

from . import confirmation, connection
from .node_client import below
from .output import Exit, Mood, ago, visible, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from .output import CommandOutput

_LARGEST = 1024 * 1024
_HEADS = ("OPERATION", "TARGET", "TIMES", "FIRST", "LAST", "FOR", "BY")


def run_start(options: argparse.Namespace, output: CommandOutput) -> int:
    """Start a shadow run."""
    text = _contents(options.manifest)
    node = connection.node(options)
    if not options.dry_run:
        question = f"start a shadow run of {visible(options.subject)} with {visible(options.manifest)} on all nodes?"
        confirmation.confirm(question, yes=options.yes)
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
        confirmation.confirm(f"stop the shadow run of {visible(run['subject'])}?", yes=options.yes)
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
        output.table(_HEADS, [_finding(one) for one in found])
    if others:
        output.line(f"and {others} accesses that are not listed")


def _finding(one: Mapping[str, Any]) -> tuple[object, ...]:
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
