"""``democrai-sandbox audit verify``: verify the audit log of a node, a database or an export."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from . import places
from .databases import database_url, opened
from .exits import Exit
from .files import text_of
from .output import Mood, visible

if TYPE_CHECKING:
    import argparse

    from .output import Output

_PATIENCE = 3600.0
"""Timeout in seconds; the duration grows with the audit log."""


def run_verify(options: argparse.Namespace, output: Output) -> int:
    """Verify the hash chain."""
    if options.export:
        report = _of_export(options.export)
    elif options.database is not None:
        report = _of_database(options)
    else:
        node = places.node(options)
        node.patience = _PATIENCE
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


def _of_database(options: argparse.Namespace) -> dict[str, Any]:
    from democrai_sandbox.access.audit import verify_store  # noqa: PLC0415 - takes its time

    options.database = options.database or None
    with opened(database_url(options)) as store:
        return asdict(verify_store(store))


def _of_export(file: str) -> dict[str, Any]:
    from democrai_sandbox.access.audit import verify_export  # noqa: PLC0415 - takes its time

    with text_of(file, fix="name a file written by audit export") as lines:
        return asdict(verify_export(lines))
