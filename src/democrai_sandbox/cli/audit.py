"""``democrai-sandbox audit``: show, export and verify the audit log."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import asdict
from itertools import takewhile
from types import MappingProxyType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from democrai_sandbox.errors import CommandMisused, SandboxError

from . import confirmation, connection
from .connection import given_filters
from .errors import status_of
from .files import open_text, write_whole
from .open_database import database_url, open_database
from .output import Exit, Mood, visible, when

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping

    from .node_client import NodeClient
    from .output import CommandOutput

_SECONDS = 1.0
"""Seconds between two polls."""


def run_tail(options: argparse.Namespace, output: CommandOutput) -> int:
    """Show the last records, and follow new ones on request."""
    node = connection.node(options)
    query = given_filters(options)
    found = list(node.items("/audit", most=options.n, **query))
    last = _show_records(output, found)
    if not found and not options.follow:
        output.say("no record was found")
    if options.follow:
        _follow(options, output, node, last)
    return Exit.OK


def _follow(options: argparse.Namespace, output: CommandOutput, node: NodeClient, last: int) -> NoReturn:
    """Follow the records after the given one. Records made while the node is unreachable are shown afterwards."""
    query, is_away = given_filters(options), False
    while True:
        time.sleep(_SECONDS)
        try:
            if is_away:
                node = connection.node(options)  # its address may have changed
            found = list(_since(node, last, query))  # completely, or it is requested again
        except SandboxError as error:
            if status_of(error) is not Exit.UNREACHABLE:
                raise
            if not is_away:
                output.say(f"{visible(str(error))}; retrying until it answers")
            is_away = True
            continue
        if is_away:
            output.say(f"{visible(node.url)} answers again")
        is_away = False
        last = _show_records(output, found) or last


def _since(node: NodeClient, last: int, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    return takewhile(lambda record: record["sequence"] > last, node.items("/audit", **query))


def _show_records(output: CommandOutput, newest_first: list[dict[str, Any]]) -> int:
    """Show records in order; return the number of the last."""
    for record in reversed(newest_first):
        if output.is_json:
            output.record({"schema": "democrai-sandbox/audit.tail/1", **record})
        else:
            output.line(_line(record))
    output.flush()
    return int(newest_first[0]["sequence"]) if newest_first else 0


def _line(record: Mapping[str, Any]) -> str:
    access, after = record["access"], record["after"]
    reason, person, text = after.get("reason"), after.get("person"), after.get("text")
    parts = [
        f"{record['sequence']:>6}  {when(record['at'])}  {record['action']:<20}",
        f"by {record['actor']}" if record["actor"] else "",
        f"{access['subject']} {access['operation']} {access['target']}" if access else "",
        f"user {person}" if person else "",
        f"request {record['request_id']}" if record["request_id"] else "",
        str(text) if text else "",
        f"reason: {reason}" if reason else "",
    ]
    return visible("  ".join(filter(None, parts)))


_TELL_EVERY = 500


def run_export(options: argparse.Namespace, output: CommandOutput) -> int:
    """Export the audit log."""
    if options.json and not options.output and options.format != "jsonl":
        raise CommandMisused("--json and --format csv cannot be combined", fix="remove one of them, or add --output")
    node = connection.node(options)
    lines = _with_progress(node.lines("/audit/export", format=options.format, **given_filters(options)), output)
    if not options.output:
        for line in lines:
            output.exactly(line)
        return Exit.OK
    confirmation.confirm_replacing(options.output, yes=options.yes)
    with write_whole(options.output, fix="name another file with --output") as file:
        facts = _FACTS[options.format](_copied(lines, file))
    _report_export(output, {"file": options.output, "format": options.format, **facts})
    return Exit.OK


def _with_progress(lines: Iterator[bytes], output: CommandOutput) -> Iterator[bytes]:
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


def _report_export(output: CommandOutput, facts: dict[str, Any]) -> None:
    """Report the file and the number of records."""
    if output.is_json:
        output.data("audit.export/1", facts)
        return
    end = f"; the last one is {facts['last_sequence']} with hash {facts['last_hash']}" if facts.get("last_hash") else ""
    output.say(visible(f"{facts['records']} records written to {facts['file']}{end}"))


_VERIFY_TIMEOUT = 3600.0
"""Timeout in seconds; the duration grows with the audit log."""


def run_verify(options: argparse.Namespace, output: CommandOutput) -> int:
    """Verify the hash chain."""
    if options.export:
        report = _verify_export(options.export)
    elif options.database is not None:
        report = _verify_database(options)
    else:
        node = connection.node(options)
        node.patience = _VERIFY_TIMEOUT
        output.progress("the node verifies every record")
        report = node.get("/audit/verify")
        output.progress("")
    if output.is_json:
        output.data("audit.verify/1", report)
    elif report["ok"]:
        output.line(f"{report['count']} records, the hash chain is valid", Mood.OK)
    else:
        output.line(f"the hash chain is broken at record {report['first_bad']}: {visible(report['what'])}", Mood.BAD)
    return Exit.OK if report["ok"] else Exit.FAILED


def _verify_database(options: argparse.Namespace) -> dict[str, Any]:
    from democrai_sandbox.access.audit import verify_store  # noqa: PLC0415 - takes its time

    options.database = options.database or None
    with open_database(database_url(options)) as store:
        return asdict(verify_store(store))


def _verify_export(file: str) -> dict[str, Any]:
    from democrai_sandbox.access.audit import verify_export  # noqa: PLC0415 - takes its time

    with open_text(file, fix="name a file written by audit export") as lines:
        return asdict(verify_export(lines))
