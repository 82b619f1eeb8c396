"""The caller's account, tokens and sessions, and the audit log: list, show, verify and export it.

An application with its own users has no accounts. The export is JSON lines, or CSV without formulas.
"""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from fastapi import Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field

from democrai_sandbox.access.audit import canonical, export, verify_store
from democrai_sandbox.access.values import AuditAction, AuditFilter
from democrai_sandbox.console.auth import (
    ServedRequest,
    Visitor,
    holder,
    require_administrator,
    require_fresh,
    visitor_of,
)
from democrai_sandbox.console.render import speakable
from democrai_sandbox.errors import AccountUnknown, NotSignedIn
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import InvalidInputError

from . import openapi
from .openapi import operation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Any

    from democrai_sandbox.access.values import AuditRecord
    from democrai_sandbox.host.accounts import Accounts

accounts = openapi.router("accounts")
Manager = Annotated[ServedRequest, Depends(holder(Scope.ACCOUNTS_MANAGE))]
_LONGEST_LIFETIME = 3650 * 86400


class Me(openapi.ApiAnswer):
    """The caller."""

    user_id: openapi.Text
    name: openapi.Text
    organization_id: openapi.Text
    session_key: openapi.Text
    role: openapi.Text
    access_level: openapi.Text
    may_decide: bool
    scopes: list[str] | None
    """Scopes of the token; null for a session, which has all rights of the role."""


class TokenItem(openapi.ApiAnswer):
    """A token without its secret."""

    id: str
    label: openapi.Text
    scopes: Annotated[list[str], BeforeValidator(sorted)]
    created_at: datetime
    expires_at: datetime | None
    last_used: datetime | None
    ended_at: datetime | None


class TokenList(openapi.ApiAnswer):
    """Tokens, newest first."""

    items: list[TokenItem]


class NewToken(openapi.ApiInput):
    """A token to create."""

    label: str = Field(min_length=1, max_length=100)
    scopes: list[str] = Field(min_length=1, max_length=len(Scope), description="Only scopes that the caller has.")
    lifetime_seconds: int | None = Field(default=None, gt=0, le=_LONGEST_LIFETIME)


class MadeToken(openapi.ApiAnswer):
    """A new token; the secret is shown only here."""

    token: TokenItem
    secret: str


class SessionItem(openapi.ApiAnswer):
    """A session."""

    id: str
    address: openapi.Text
    user_agent: openapi.Text
    created_at: datetime
    last_seen: datetime
    is_present: bool
    """Whether it is the session of this HTTP request."""


class SessionList(openapi.ApiAnswer):
    """Sessions, newest first."""

    items: list[SessionItem]


class Ended(openapi.ApiAnswer):
    """Number of ended sessions or tokens."""

    ended: int


def _signed_in(request: Request) -> Visitor:
    """Return the caller, with a session or a token of any scope."""
    visitor = visitor_of(request)
    if visitor is None:
        raise NotSignedIn
    return visitor


@accounts.get("/me", **operation(None))
def show_me(visitor: Annotated[Visitor, Depends(_signed_in)]) -> Me:
    """Return the caller and its rights; needs no scope."""
    caller, scopes = visitor.caller, visitor.identity.scopes
    shown = None if scopes is None else sorted(scopes)
    return Me.of(caller, name=visitor.name, may_decide=visitor.may_decide, scopes=shown)


@accounts.get("/tokens", **operation(Scope.ACCOUNTS_MANAGE, 404))
def list_tokens(served: Manager) -> TokenList:
    """List your tokens, including recently ended ones."""
    return TokenList.model_validate({"items": _accounts(served).tokens_of(served.caller.user_id)})


@accounts.post("/tokens", status_code=201, **operation(Scope.ACCOUNTS_MANAGE, 404, 409, body=True))
def create_token(served: Manager, new: NewToken) -> MadeToken:
    """Create a token. A token created with a token has at most its scopes and its lifetime."""
    known = _accounts(served)
    require_fresh(served.request, served.visitor)
    lifetime = None if new.lifetime_seconds is None else timedelta(seconds=new.lifetime_seconds)
    _check_lifetime(known, served.visitor, lifetime)
    token, secret = known.create_token(
        served.caller.user_id, new.label, new.scopes, lifetime, within=served.visitor.identity.scopes
    )
    return MadeToken(token=TokenItem.model_validate(token), secret=secret)


@accounts.delete("/tokens/{token_id}", **operation(Scope.ACCOUNTS_MANAGE, 404))
def revoke_token(served: Manager, token_id: openapi.Id) -> Ended:
    """Revoke one of your tokens, and end its session approvals."""
    who = served.caller.user_id
    _accounts(served).revoke_token(token_id, who, owner=who)
    return Ended(ended=1)


@accounts.get("/sessions", **operation(Scope.ACCOUNTS_MANAGE, 404))
def list_sessions(served: Manager) -> SessionList:
    """List your sessions."""
    present, found = served.visitor.identity.session_key, _accounts(served).sessions_of(served.caller.user_id)
    return SessionList(items=[SessionItem.of(session, is_present=session.id == present) for session in found])


@accounts.delete("/sessions", **operation(Scope.ACCOUNTS_MANAGE, 404))
def end_other_sessions(served: Manager) -> Ended:
    """End all your other sessions and their approvals."""
    who = served.caller.user_id
    return Ended(ended=_accounts(served).end_all(who, served.visitor.identity.session_key, actor=who))


@accounts.delete("/sessions/{session_id}", **operation(Scope.ACCOUNTS_MANAGE, 404))
def end_session(served: Manager, session_id: openapi.Id) -> Ended:
    """End one of your sessions and its approvals."""
    who = served.caller.user_id
    _accounts(served).end_session(session_id, who, owner=who)
    return Ended(ended=1)


def _accounts(served: ServedRequest) -> Accounts:
    found = served.sandbox.accounts
    if found is None:
        raise AccountUnknown("this application manages its own users and has no accounts here")
    return found


def _check_lifetime(known: Accounts, visitor: Visitor, lifetime: timedelta | None) -> None:
    """Refuse a token that would outlive the token that creates it."""
    if visitor.identity.scopes is None:
        return
    own = (token for token in known.tokens_of(visitor.caller.user_id) if token.id == visitor.identity.session_key)
    ends = next((token.expires_at for token in own), None)
    if ends is not None and (lifetime is None or datetime.now(UTC) + lifetime > ends):
        message = f"the token of this call expires at {ends.isoformat(timespec='seconds')}"
        raise InvalidInputError.of(message, pointer="/lifetime_seconds")


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
    about = (str(access.subject), access.resource_type, access.operation, access.target) if access else ("",) * 4
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


audit = openapi.router("audit")
AuditReader = Annotated[ServedRequest, Depends(holder(Scope.AUDIT_READ))]
_LARGEST = (1 << 63) - 1


class AuditChoice(BaseModel):
    """Filters of records."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: list[AuditAction] = Field(default=[], description="May be repeated.")
    actor: str = Field(default="", max_length=500)
    subject: openapi.SubjectText = ""
    request: str = Field(default="", max_length=100, description="The id of a request.")
    since: AwareDatetime | None = Field(default=None, description="At this time or later.")
    until: AwareDatetime | None = Field(default=None, description="Before this time.")

    @property
    def wanted(self) -> AuditFilter:
        """The filter for the access service."""
        return AuditFilter(
            tuple(self.action), self.actor, openapi.subject_of(self.subject), self.request, self.since, self.until
        )


class AuditQuery(AuditChoice, openapi.Paging):
    """Filters and page of records."""


class ExportQuery(AuditChoice):
    """Filters and format of an export."""

    format: Literal["jsonl", "csv"] = "jsonl"


class AuditVerification(openapi.ApiAnswer):
    """Result of verifying the hash chain."""

    ok: bool
    count: int
    first_bad: int | None
    what: openapi.Text


@audit.get("/audit", **operation(Scope.AUDIT_READ, query=True))
def list_audit(served: AuditReader, query: Annotated[AuditQuery, Query()]) -> openapi.ListPage[openapi.AuditItem]:
    """List records, newest first."""
    with served.administration() as administration:
        return openapi.ListPage[openapi.AuditItem].model_validate(administration.history(query.wanted, query.page))


_EXPORT: dict[str, Any] = operation(Scope.AUDIT_READ, query=True)
_EXPORT["responses"][200] = {
    "description": "One record per line.",
    "content": {kind: {"schema": {"type": "string"}} for kind in MEDIA_TYPES.values()},
}


@audit.get("/audit/export", response_class=StreamingResponse, **_EXPORT)
def export_audit(served: AuditReader, query: Annotated[ExportQuery, Query()]) -> StreamingResponse:
    """Export records, oldest first, as JSON lines that can be verified, or as CSV for spreadsheets."""
    require_administrator(served.visitor)
    wanted = query.wanted
    records = (record for record in served.sandbox.access.store.audit_rows() if is_wanted(record, wanted))
    lines = FORMATS[query.format](records)
    headers = {"Content-Disposition": f'attachment; filename="audit.{query.format}"', "Cache-Control": "no-store"}
    return StreamingResponse(lines, media_type=MEDIA_TYPES[query.format], headers=headers)


@audit.get("/audit/verify", **operation(Scope.AUDIT_READ))
def verify_audit(served: AuditReader) -> AuditVerification:
    """Verify the hash chain from the first record to the last. The duration grows with the audit log."""
    require_administrator(served.visitor)
    return AuditVerification.model_validate(verify_store(served.sandbox.access.store))


@audit.get("/audit/{sequence}", **operation(Scope.AUDIT_READ, 404))
def show_record(served: AuditReader, sequence: Annotated[int, Path(ge=1, le=_LARGEST)]) -> openapi.AuditItem:
    """Show one record with the state before and after it."""
    with served.administration() as administration:
        return openapi.AuditItem.model_validate(administration.audit_record(sequence))
