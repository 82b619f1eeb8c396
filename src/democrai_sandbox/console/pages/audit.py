"""Audit log: list, single records, and verification of the hash chain."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.access.values import AuditAction, AuditFilter
from democrai_sandbox.console.auth import sandbox_of
from democrai_sandbox.console.render import redirect, render
from democrai_sandbox.console.untrusted_text import code
from democrai_sandbox.runtime.access_environment import serving

from .modules import shown_result
from .parameters import Administrator, choice_of, moment_of, page_of, subject_of, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from democrai_sandbox.access.audit import AuditReport
    from democrai_sandbox.access.values import AuditRecord

router = APIRouter()

_LONGEST_SUMMARY = 160
_FILTERS = ("action", "actor", "subject", "request", "since", "until")


class AuditCheck(NamedTuple):
    """Result of a verification."""

    report: AuditReport
    at: datetime


class ValueDifference(NamedTuple):
    """One value before and after."""

    name: str
    before: str
    after: str
    kind: str
    """``same``, ``changed``, ``added`` or ``removed``."""


@router.get("/audit")
def listed(request: Request, visitor: Administrator) -> HTMLResponse:
    """List records, newest first."""
    sandbox = sandbox_of(request)
    action = choice_of(request, "action", AuditAction)
    wanted = AuditFilter(
        actions=(action,) if action else (),
        actor=text_of(request, "actor"),
        subject=subject_of(request),
        request_id=text_of(request, "request"),
        since=moment_of(request, "since"),
        until=moment_of(request, "until"),
    )
    given = {name: text_of(request, name) for name in _FILTERS}
    with serving(visitor.caller):
        listing = sandbox.access.administration.history(wanted, page_of(request))
    return render(
        request,
        "audit/list.html",
        visitor=visitor,
        listing=listing,
        summary=summary,
        actions=[("", "any"), *((one.value, one.value.replace("_", " ")) for one in AuditAction)],
        given=given,
        export={**given, "since": _whole(wanted.since), "until": _whole(wanted.until)},
        head=sandbox.access.store.audit_head()[0],
        checked=getattr(request.app.state, "audit_checked", None),
    )


@router.post("/audit/verify")
def verify(request: Request, visitor: Administrator) -> RedirectResponse:
    """Verify the whole hash chain, and keep the result."""
    del visitor
    request.app.state.audit_checked = AuditCheck(verify_store(sandbox_of(request).access.store), datetime.now(UTC))
    return redirect(request, "/audit")


@router.get("/audit/{sequence}")
def shown(request: Request, sequence: int, visitor: Administrator) -> HTMLResponse:
    """Show one record."""
    sandbox = sandbox_of(request)
    with serving(visitor.caller):
        record = sandbox.access.administration.audit_record(sequence)
    return render(
        request,
        "audit/show.html",
        visitor=visitor,
        record=record,
        code=code,
        differences=tuple(differences(record.before, record.after)),
        head=sandbox.access.store.audit_head()[0],
    )


def summary(record: AuditRecord) -> str:
    """Return the content of a record without an access, in one line."""
    told = record.after or record.before
    parts = [
        f"{name.replace('_', ' ')} {value}" for name, value in told.items() if isinstance(value, str | int) and value
    ]
    line = ", ".join(parts)
    return line if len(line) <= _LONGEST_SUMMARY else f"{line[: _LONGEST_SUMMARY - 1]}…"


def differences(before: Mapping[str, object], after: Mapping[str, object]) -> Iterator[ValueDifference]:
    """Yield the values before and after, changed ones first."""
    found = []
    for name in dict.fromkeys((*before, *after)):
        old = _in_words(before[name]) if name in before else ""
        new = _in_words(after[name]) if name in after else ""
        kind = "added" if name not in before else "removed" if name not in after else "changed"
        found.append(
            ValueDifference(name, old, new, "same" if name in before and name in after and old == new else kind)
        )
    yield from sorted(found, key=lambda one: one.kind == "same")


def _whole(moment: datetime | None) -> str:
    """Return a time for the API, with its zone; empty for None."""
    return "" if moment is None else moment.isoformat()


def _in_words(value: object) -> str:
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    return value if isinstance(value, str) else shown_result(value)
