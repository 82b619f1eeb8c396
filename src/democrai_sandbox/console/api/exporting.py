"""Audit records as JSON lines for ``verify_export``, or as CSV without formulas."""

from __future__ import annotations

import csv
import io
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.access.audit import canonical, export
from democrai_sandbox.console.plain import speakable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from democrai_sandbox.access.values import AuditFilter, AuditRecord

MEDIA_TYPES = MappingProxyType({"jsonl": "application/x-ndjson", "csv": "text/csv"})
COLUMNS = (
    *("sequence", "at", "action", "actor", "subject", "resource_type", "operation", "target"),
    *("request_id", "before", "after", "previous_hash", "hash"),
)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of formulas in spreadsheets, which strip white space."""
_AT_ONCE = 64 * 1024


def is_wanted(record: AuditRecord, wanted: AuditFilter) -> bool:
    """Return whether a record matches a filter, as in the list of records."""
    return (
        (not wanted.actions or record.action in wanted.actions)
        and (not wanted.actor or record.actor == wanted.actor)
        and (wanted.subject is None or (record.access is not None and record.access.subject == wanted.subject))
        and (not wanted.request_id or record.request_id == wanted.request_id)
        and (wanted.since is None or record.at >= wanted.since)
        and (wanted.until is None or record.at < wanted.until)
    )


def as_jsonl(records: Iterable[AuditRecord]) -> Iterator[bytes]:
    """Yield one JSON object per line, with texts unchanged."""
    page = io.StringIO()
    for record in records:
        export((record,), page)
        if page.tell() >= _AT_ONCE:
            yield _taken(page)
    yield _taken(page)


def as_csv(records: Iterable[AuditRecord]) -> Iterator[bytes]:
    """Yield a header and one line per record; a cell that looks like a formula starts with an apostrophe."""
    page = io.StringIO()
    writer = csv.writer(page)
    writer.writerow(COLUMNS)
    for record in records:
        writer.writerow(_cells(record))
        if page.tell() >= _AT_ONCE:
            yield _taken(page)
    yield _taken(page)


FORMATS: Mapping[str, Callable[[Iterable[AuditRecord]], Iterator[bytes]]] = MappingProxyType(
    {"jsonl": as_jsonl, "csv": as_csv}
)


def _cells(record: AuditRecord) -> list[str]:
    access = record.access
    about = (
        ("",) * 4 if access is None else (str(access.subject), access.resource_type, access.operation, access.target)
    )
    cells = (
        *(str(record.sequence), record.at.astimezone(UTC).isoformat(timespec="microseconds"), record.action.value),
        *(record.actor, *about, record.request_id, canonical(record.before), canonical(record.after)),
        *(record.previous_hash, record.hash),
    )
    return [_inert(cell) for cell in cells]


def _inert(cell: str) -> str:
    text = speakable(str(cell)).replace("\0", "\\x00")
    return f"'{text}" if text.lstrip(" ").startswith(_FORMULA) else text


def _taken(page: io.StringIO) -> bytes:
    text = page.getvalue()
    page.seek(0)
    page.truncate()
    return text.encode()
