"""``democrai-sandbox audit export``: stream to standard output, or write a complete file."""

from __future__ import annotations

import csv
import json
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandMisused

from . import asking, places
from .exits import Exit
from .files import whole
from .narrowing import given_filters
from .output import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from .output import Output

_TELL_EVERY = 500


def run_export(options: argparse.Namespace, output: Output) -> int:
    """Export the audit log."""
    if options.json and not options.output and options.format != "jsonl":
        raise CommandMisused("--json and --format csv cannot be combined", fix="remove one of them, or add --output")
    node = places.node(options)
    lines = _told_of(node.lines("/audit/export", format=options.format, **given_filters(options)), output)
    if not options.output:
        for line in lines:
            output.exactly(line)
        return Exit.OK
    asking.confirm_replacing(options.output, yes=options.yes)
    with whole(options.output, fix="name another file with --output") as file:
        facts = _FACTS[options.format](_copied(lines, file))
    _tell(output, {"file": options.output, "format": options.format, **facts})
    return Exit.OK


def _told_of(lines: Iterator[bytes], output: Output) -> Iterator[bytes]:
    """Pass lines on, and show their number unless they go to the same terminal."""
    for count, line in enumerate(lines, 1):
        if count % _TELL_EVERY == 0 and not output.is_watched:
            output.progress(f"{count} lines")
        yield line
    output.progress("")


def _copied(lines: Iterator[bytes], file: IO[bytes]) -> Iterator[str]:
    for line in lines:
        file.write(line)
        yield line.decode("utf-8", "replace")


def _facts_of_jsonl(lines: Iterator[str]) -> dict[str, Any]:
    """Return the number of records, and the last hash, by which a later check detects a truncated file."""
    count, last = 0, "{}"
    for count, last in enumerate(lines, 1):  # noqa: B007 - the last ones count
        pass
    found = json.loads(last)
    return {"records": count, "last_sequence": found.get("sequence"), "last_hash": found.get("hash")}


def _facts_of_csv(lines: Iterator[str]) -> dict[str, Any]:
    return {"records": max(0, sum(1 for _ in csv.reader(lines)) - 1)}  # without the header line


_FACTS = MappingProxyType({"jsonl": _facts_of_jsonl, "csv": _facts_of_csv})


def _tell(output: Output, facts: dict[str, Any]) -> None:
    """Report the file and the number of records."""
    if output.is_json:
        output.data("audit.export/1", facts)
        return
    end = f"; the last one is {facts['last_sequence']} with hash {facts['last_hash']}" if facts.get("last_hash") else ""
    output.say(visible(f"{facts['records']} records written to {facts['file']}{end}"))
