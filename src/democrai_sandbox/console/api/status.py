"""Measured state of every layer."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request

from democrai_sandbox.console.auth import Visitor, require_administrator, sandbox_of
from democrai_sandbox.console.health import aside, observer
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.host.status import report
from democrai_sandbox.host.status_report import ReportArea, ReportLineState

from .openapi import operation, router
from .schemas import ApiAnswer, Members, Text

status = router("status")


class StatusLine(ApiAnswer):
    """One layer: its current state, and a fix for a problem."""

    name: str
    title: str
    area: ReportArea
    state: ReportLineState
    wanted: bool
    summary: Text
    fix: Text
    details: Members


class StatusReport(ApiAnswer):
    """Every layer at one time."""

    at: datetime
    version: str
    node: Text
    pid: int
    ok: bool
    lines: list[StatusLine]
    selftest: list[dict[str, Any]]


@status.get("/status", **operation(Scope.STATUS_READ))
async def show_status(
    request: Request, visitor: Annotated[Visitor, Depends(observer(Scope.STATUS_READ))]
) -> StatusReport:
    """Measure every layer: the guard, the database, events, the kernel's controls, extensions and workers."""
    require_administrator(visitor)
    found = await aside(partial(report, sandbox_of(request)))
    return StatusReport.model_validate(found.as_dict())
