"""The caller's account, tokens and sessions. An application with its own users has none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from pydantic import BeforeValidator, Field

from democrai_sandbox.console.auth import Visitor, holder, require_fresh, sandbox_of, visitor_of
from democrai_sandbox.errors import AccountUnknown, NotSignedIn
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import InvalidInputError

from .openapi import operation, router
from .schemas import ApiAnswer, ApiInput, Id, Text

if TYPE_CHECKING:
    from democrai_sandbox.host.accounts import Accounts

accounts = router("accounts")
Manager = Annotated[Visitor, Depends(holder(Scope.ACCOUNTS_MANAGE))]
_LONGEST_LIFETIME = 3650 * 86400


class Me(ApiAnswer):
    """The caller."""

    user_id: Text
    name: Text
    organization_id: Text
    session_key: Text
    role: Text
    access_level: Text
    may_decide: bool
    scopes: list[str] | None
    """Scopes of the token; null for a session, which has all rights of the role."""


class TokenItem(ApiAnswer):
    """A token without its secret."""

    id: str
    label: Text
    scopes: Annotated[list[str], BeforeValidator(sorted)]
    created_at: datetime
    expires_at: datetime | None
    last_used: datetime | None
    ended_at: datetime | None


class TokenList(ApiAnswer):
    """Tokens, newest first."""

    items: list[TokenItem]


class NewToken(ApiInput):
    """A token to create."""

    label: str = Field(min_length=1, max_length=100)
    scopes: list[str] = Field(min_length=1, max_length=len(Scope), description="Only scopes that the caller has.")
    lifetime_seconds: int | None = Field(default=None, gt=0, le=_LONGEST_LIFETIME)


class MadeToken(ApiAnswer):
    """A new token; the secret is shown only here."""

    token: TokenItem
    secret: str


class SessionItem(ApiAnswer):
    """A session."""

    id: str
    address: Text
    user_agent: Text
    created_at: datetime
    last_seen: datetime
    is_present: bool
    """Whether it is the session of this HTTP request."""


class SessionList(ApiAnswer):
    """Sessions, newest first."""

    items: list[SessionItem]


class Ended(ApiAnswer):
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
def list_tokens(request: Request, visitor: Manager) -> TokenList:
    """List your tokens, including recently ended ones."""
    return TokenList.model_validate({"items": _accounts(request).tokens_of(visitor.caller.user_id)})


@accounts.post("/tokens", status_code=201, **operation(Scope.ACCOUNTS_MANAGE, 404, 409, body=True))
def create_token(request: Request, new: NewToken, visitor: Manager) -> MadeToken:
    """Create a token. A token created with a token has at most its scopes and its lifetime."""
    known = _accounts(request)
    require_fresh(request, visitor)
    lifetime = None if new.lifetime_seconds is None else timedelta(seconds=new.lifetime_seconds)
    _check_lifetime(known, visitor, lifetime)
    token, secret = known.create_token(
        visitor.caller.user_id, new.label, new.scopes, lifetime, within=visitor.identity.scopes
    )
    return MadeToken(token=TokenItem.model_validate(token), secret=secret)


@accounts.delete("/tokens/{token_id}", **operation(Scope.ACCOUNTS_MANAGE, 404))
def revoke_token(request: Request, token_id: Id, visitor: Manager) -> Ended:
    """Revoke one of your tokens, and end its session approvals."""
    who = visitor.caller.user_id
    _accounts(request).revoke_token(token_id, who, owner=who)
    return Ended(ended=1)


@accounts.get("/sessions", **operation(Scope.ACCOUNTS_MANAGE, 404))
def list_sessions(request: Request, visitor: Manager) -> SessionList:
    """List your sessions."""
    present, found = visitor.identity.session_key, _accounts(request).sessions_of(visitor.caller.user_id)
    return SessionList(items=[SessionItem.of(session, is_present=session.id == present) for session in found])


@accounts.delete("/sessions", **operation(Scope.ACCOUNTS_MANAGE, 404))
def end_other_sessions(request: Request, visitor: Manager) -> Ended:
    """End all your other sessions and their approvals."""
    who = visitor.caller.user_id
    return Ended(ended=_accounts(request).end_all(who, visitor.identity.session_key, actor=who))


@accounts.delete("/sessions/{session_id}", **operation(Scope.ACCOUNTS_MANAGE, 404))
def end_session(request: Request, session_id: Id, visitor: Manager) -> Ended:
    """End one of your sessions and its approvals."""
    who = visitor.caller.user_id
    _accounts(request).end_session(session_id, who, owner=who)
    return Ended(ended=1)


def _accounts(request: Request) -> Accounts:
    found = sandbox_of(request).accounts
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
