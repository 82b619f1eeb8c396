"""Audit log: list, show, verify, and export as JSON lines or as CSV without formulas."""

from __future__ import annotations

import csv
import io
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from democrai_sandbox.access.audit import canonical, export, verify_store
from democrai_sandbox.access.values import AuditAction, AuditFilter
from democrai_sandbox.console.auth import Visitor, holder, require_administrator, sandbox_of
from democrai_sandbox.console.plain_json import speakable
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.runtime.access_environment import serving

from . import schemas
from .openapi import operation, router
from .schemas import ApiAnswer, SubjectText, Text, subject_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from democrai_sandbox.access.values import AuditRecord

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


audit = router("audit")
Reader = Annotated[Visitor, Depends(holder(Scope.AUDIT_READ))]
_LARGEST = (1 << 63) - 1


class AuditChoice(BaseModel):
    """Filters of records."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: list[AuditAction] = Field(default=[], description="May be repeated.")
    actor: str = Field(default="", max_length=500)
    subject: SubjectText = ""
    request: str = Field(default="", max_length=100, description="The id of a request.")
    since: AwareDatetime | None = Field(default=None, description="At this time or later.")
    until: AwareDatetime | None = Field(default=None, description="Before this time.")

    @property
    def wanted(self) -> AuditFilter:
        """The filter for the access service."""
        return AuditFilter(
            tuple(self.action), self.actor, subject_of(self.subject), self.request, self.since, self.until
        )


class AuditQuery(AuditChoice, schemas.Paging):
    """Filters and page of records."""


class ExportQuery(AuditChoice):
    """Filters and format of an export."""

    format: Literal["jsonl", "csv"] = "jsonl"


class AuditVerification(ApiAnswer):
    """Result of verifying the hash chain."""

    ok: bool
    count: int
    first_bad: int | None
    what: Text


@audit.get("/audit", **operation(Scope.AUDIT_READ, query=True))
def list_audit(
    request: Request, query: Annotated[AuditQuery, Query()], visitor: Reader
) -> schemas.ListPage[schemas.AuditItem]:
    """List records, newest first."""
    with serving(visitor.caller):
        found = sandbox_of(request).access.administration.history(query.wanted, query.page)
    return schemas.ListPage[schemas.AuditItem].model_validate(found)


_EXPORT: dict[str, Any] = operation(Scope.AUDIT_READ, query=True)
_EXPORT["responses"][200] = {
    "description": "One record per line.",
    "content": {kind: {"schema": {"type": "string"}} for kind in MEDIA_TYPES.values()},
}


@audit.get("/audit/export", response_class=StreamingResponse, **_EXPORT)
def export_audit(request: Request, query: Annotated[ExportQuery, Query()], visitor: Reader) -> StreamingResponse:
    """Export records, oldest first, as JSON lines that can be verified, or as CSV for spreadsheets."""
    require_administrator(visitor)
    wanted = query.wanted
    records = (record for record in sandbox_of(request).access.store.audit_rows() if is_wanted(record, wanted))
    lines = FORMATS[query.format](records)
    headers = {
        "Content-Disposition": f'attachment; filename="audit.{query.format}"',
        "Cache-Control": "no-store",
    }
    return StreamingResponse(lines, media_type=MEDIA_TYPES[query.format], headers=headers)


@audit.get("/audit/verify", **operation(Scope.AUDIT_READ))
def verify_audit(request: Request, visitor: Reader) -> AuditVerification:
    """Verify the hash chain from the first record to the last. The duration grows with the audit log."""
    require_administrator(visitor)
    return AuditVerification.model_validate(verify_store(sandbox_of(request).access.store))


@audit.get("/audit/{sequence}", **operation(Scope.AUDIT_READ, 404))
def show_record(
    request: Request, sequence: Annotated[int, Path(ge=1, le=_LARGEST)], visitor: Reader
) -> schemas.AuditItem:
    """Show one record with the state before and after it."""
    with serving(visitor.caller):
        record = sandbox_of(request).access.administration.audit_record(sequence)
    return schemas.AuditItem.model_validate(record)
