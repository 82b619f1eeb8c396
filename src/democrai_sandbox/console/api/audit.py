"""Audit log: list, show, export and verify."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.values import AuditAction, AuditFilter
from democrai_sandbox.console.admitting import require_administrator
from democrai_sandbox.console.visitors import Visitor, holder, sandbox_of
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.runtime.surroundings import serving

from . import exporting, schemas
from .documenting import router, told
from .schemas import Answer, SubjectText, Text, subject_of

if TYPE_CHECKING:
    from typing import Any

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


class AuditReport(Answer):
    """Result of verifying the hash chain."""

    ok: bool
    count: int
    first_bad: int | None
    what: Text


@audit.get("/audit", **told(Scope.AUDIT_READ, query=True))
def list_audit(
    request: Request, query: Annotated[AuditQuery, Query()], visitor: Reader
) -> schemas.Page[schemas.AuditRecord]:
    """List records, newest first."""
    with serving(visitor.caller):
        found = sandbox_of(request).access.administration.history(query.wanted, query.page)
    return schemas.Page[schemas.AuditRecord].model_validate(found)


_EXPORT: dict[str, Any] = told(Scope.AUDIT_READ, query=True)
_EXPORT["responses"][200] = {
    "description": "One record per line.",
    "content": {kind: {"schema": {"type": "string"}} for kind in exporting.MEDIA_TYPES.values()},
}


@audit.get("/audit/export", response_class=StreamingResponse, **_EXPORT)
def export_audit(request: Request, query: Annotated[ExportQuery, Query()], visitor: Reader) -> StreamingResponse:
    """Export records, oldest first, as JSON lines that can be verified, or as CSV for spreadsheets."""
    require_administrator(visitor)
    wanted = query.wanted
    records = (
        record for record in sandbox_of(request).access.store.audit_rows() if exporting.is_wanted(record, wanted)
    )
    lines = exporting.FORMATS[query.format](records)
    headers = {
        "Content-Disposition": f'attachment; filename="audit.{query.format}"',
        "Cache-Control": "no-store",
    }
    return StreamingResponse(lines, media_type=exporting.MEDIA_TYPES[query.format], headers=headers)


@audit.get("/audit/verify", **told(Scope.AUDIT_READ))
def verify_audit(request: Request, visitor: Reader) -> AuditReport:
    """Verify the hash chain from the first record to the last. The duration grows with the audit log."""
    require_administrator(visitor)
    return AuditReport.model_validate(verify_store(sandbox_of(request).access.store))


@audit.get("/audit/{sequence}", **told(Scope.AUDIT_READ, 404))
def show_record(
    request: Request, sequence: Annotated[int, Path(ge=1, le=_LARGEST)], visitor: Reader
) -> schemas.AuditRecord:
    """Show one record with the state before and after it."""
    with serving(visitor.caller):
        record = sandbox_of(request).access.administration.audit_record(sequence)
    return schemas.AuditRecord.model_validate(record)
