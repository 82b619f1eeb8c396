"""Measured state of every layer."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 - FastAPI reads the annotations
from functools import partial
from typing import Annotated, Any

from fastapi import Depends, Request

from democrai_sandbox.console.admitting import require_administrator
from democrai_sandbox.console.outage import aside, observer
from democrai_sandbox.console.visitors import Visitor, sandbox_of
from democrai_sandbox.host.reporting import Area, LineState, report
from democrai_sandbox.host.scopes import Scope

from .documenting import router, told
from .schemas import Answer, Members, Text

status = router("status")


class StatusLine(Answer):
    """One layer: its current state, and a fix for a problem."""

    name: str
    title: str
    area: Area
    state: LineState
    wanted: bool
    summary: Text
    fix: Text
    details: Members


class StatusReport(Answer):
    """Every layer at one time."""

    at: datetime
    version: str
    node: Text
    pid: int
    ok: bool
    lines: list[StatusLine]
    selftest: list[dict[str, Any]]


@status.get("/status", **told(Scope.STATUS_READ))
async def show_status(
    request: Request, visitor: Annotated[Visitor, Depends(observer(Scope.STATUS_READ))]
) -> StatusReport:
    """Measure every layer: the guard, the database, events, the kernel's controls, extensions and workers."""
    require_administrator(visitor)
    found = await aside(partial(report, sandbox_of(request)))
    return StatusReport.model_validate(found.as_dict())
