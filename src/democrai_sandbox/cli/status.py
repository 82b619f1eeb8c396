"""``democrai-sandbox status`` and ``doctor``: report the layers that a node or this machine enforces."""

from __future__ import annotations

from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from . import connection
from .connection import configuration
from .output import Exit, Mood, visible, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from .output import CommandOutput

_MOODS: Mapping[str, Mood] = MappingProxyType(
    {"ok": Mood.OK, "degraded": Mood.WARNING, "off": Mood.FAINT, "unsupported": Mood.FAINT}
)


def show_layers(output: CommandOutput, lines: Sequence[Mapping[str, Any]]) -> None:
    """Write the lines of a report (``Line.as_dict()``), grouped by area, each with its fix."""
    wide = max((len(line["title"]) for line in lines), default=0)
    for area, found in groupby(lines, lambda line: line["area"]):
        output.line(visible(str(area)), Mood.STRONG)
        for line in found:
            _show_layer(output, line, wide)


def is_well(line: Mapping[str, Any]) -> bool:
    """Return whether a line needs no action; a control that is not enabled may be off."""
    return bool(line["state"] == "ok" or (not line["wanted"] and line["state"] != "degraded"))


def problem_words(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the lines that need an action as a sentence, or an empty text."""
    ill = [visible(line["title"]) for line in lines if not is_well(line)]
    return f"{len(ill)} problem{'s' if len(ill) > 1 else ''}: {', '.join(ill)}" if ill else ""


def _show_layer(output: CommandOutput, line: Mapping[str, Any], wide: int) -> None:
    state, well = line["state"], is_well(line)
    mood = _MOODS[state] if well or state == "degraded" else Mood.BAD
    asked = "" if line["wanted"] or state == "ok" else " (not enabled)"
    painted = output.coloured(f"{visible(state):<11}", mood)
    output.line(f"  {painted}  {visible(line['title']):<{wide}}  {visible(line['summary'])}{asked}")
    if line["fix"] and state != "ok":
        output.line(f"  {'':11}  {'':{wide}}  fix: {visible(line['fix'])}")


def run_status(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show every layer of a node."""
    node = connection.node(options)
    found = node.get("/status")
    if output.is_json:
        output.data("status.show/1", found)
        return Exit.OK if found["ok"] else Exit.FAILED
    head = (
        f"node {found['node']} at {node.url}, version {found['version']}, process {found['pid']}, {when(found['at'])}"
    )
    output.line(visible(head))
    show_layers(output, found["lines"])
    wrong = problem_words(found["lines"])
    output.line(wrong or "everything that the configuration enables works", Mood.BAD if wrong else Mood.OK)
    return Exit.OK if found["ok"] else Exit.FAILED


def run_doctor(options: argparse.Namespace, output: CommandOutput) -> int:
    """Run all checks and report them."""
    settings = configuration(options).settings
    from democrai_sandbox.host.doctor import examine  # noqa: PLC0415 - takes its time

    report = examine(settings, egress=options.egress, tell=lambda what: output.progress(f"checking {what}"))
    output.progress("")
    found = report.as_dict()
    if output.is_json:
        del found["node"], found["pid"]
        output.data("doctor.show/1", found)
        return Exit.OK if report.is_well else Exit.FAILED
    lines = [line.as_dict() for line in report.lines]
    show_layers(output, lines)
    if options.attempts:
        output.line("tried", Mood.STRONG)
        for attempt in report.attempts:
            mark = "stopped" if attempt.ok else "HOLE"
            text = f"  {mark:<11}  {attempt.where}: {attempt.act}: {attempt.outcome}"
            output.line(visible(text), None if attempt.ok else Mood.BAD)
    wrong = problem_words(lines)
    output.line(wrong or "everything that the configuration enables works here", Mood.BAD if wrong else Mood.OK)
    return Exit.OK if report.is_well else Exit.FAILED
