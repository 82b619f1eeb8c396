"""``democrai-sandbox doctor``: test what this machine and this configuration can enforce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exits import Exit
from .layers import show_layers, trouble
from .output import Mood, visible
from .places import configuration

if TYPE_CHECKING:
    import argparse

    from .output import Output


def run(options: argparse.Namespace, output: Output) -> int:
    """Run all checks and report them."""
    settings = configuration(options).settings
    from democrai_sandbox.host.doctoring import examine  # noqa: PLC0415 - takes its time

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
    wrong = trouble(lines)
    output.line(wrong or "everything that the configuration enables works here", Mood.BAD if wrong else Mood.OK)
    return Exit.OK if report.is_well else Exit.FAILED
