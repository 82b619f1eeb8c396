"""``democrai-sandbox doctor``: what this machine and this configuration can enforce, found out by trying."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .exits import Exit
from .layers import show_layers, trouble
from .output import Mood, visible
from .places import add_config, add_json, configuration

if TYPE_CHECKING:
    import argparse

    from .output import Output

_DESCRIPTION = """\
Try what this machine and this configuration can enforce, in processes that are there for nothing else, and say of each
line what to do where it is less than it could be. Changes nothing and needs no root; what only root can have is said.
Ends with 1 when something that the configuration asks for is not possible."""


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.description = _DESCRIPTION
    add_config(parser)
    parser.add_argument(
        "--egress",
        action="store_true",
        help="start the helper too, and put a throw-away process under an empty allowlist for a moment",
    )
    parser.add_argument("--attempts", action="store_true", help="list every forbidden act that was tried")
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace, output: Output) -> int:
    """Look at everything, and say it."""
    settings = configuration(options).settings
    from democrai_sandbox.host.doctoring import examine  # noqa: PLC0415 - takes its time

    report = examine(settings, egress=options.egress, tell=lambda what: output.progress(f"looking at {what}"))
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
    output.line(wrong or "all that is asked for is possible here", Mood.BAD if wrong else Mood.OK)
    return Exit.OK if report.is_well else Exit.FAILED
