"""Account page: password, sessions and tokens of the user."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Form, Request
from starlette.responses import RedirectResponse, Response

from democrai_sandbox.console.confirming import wait_words
from democrai_sandbox.console.rendering import id_in_query, redirect, render
from democrai_sandbox.console.returning import safe_next
from democrai_sandbox.console.visitors import own_path, require_fresh
from democrai_sandbox.errors import SignInRefused, SignInThrottled
from democrai_sandbox.host.scopes import Scope
from democrai_sandbox.policy import InvalidInputError

from .admitting import Somebody  # noqa: TC001 - FastAPI reads the annotations
from .login import Field, OwnAccounts, forget_cookie

if TYPE_CHECKING:
    from democrai_sandbox.console.visitors import Visitor
    from democrai_sandbox.host.accounts import Accounts

router = APIRouter()
_LIFETIMES = (("7", "7 days"), ("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("", "until it is revoked"))
_DAYS = frozenset(days for days, _ in _LIFETIMES)
_SCOPES = (
    (Scope.REQUESTS_READ, "see requests"),
    (Scope.REQUESTS_DECIDE, "approve and deny requests"),
    (Scope.APPROVALS_READ, "see approvals and denials"),
    (Scope.APPROVALS_REVOKE, "revoke approvals and denials"),
    (Scope.SUBJECTS_READ, "see subjects, extensions and explanations"),
    (Scope.MODULES_RUN, "run renders, actions and commands, and start tasks"),
    (Scope.TASKS_READ, "see tasks"),
    (Scope.TASKS_CANCEL, "cancel tasks"),
    (Scope.AUDIT_READ, "read the audit log"),
    (Scope.STATUS_READ, "see status and metrics"),
    (Scope.ACCOUNTS_MANAGE, "list and end sessions, create and revoke tokens"),
)


@router.get("/account")
def show_account(request: Request, visitor: Somebody, accounts: OwnAccounts) -> Response:
    """Show the sessions and tokens of the user."""
    return _page(request, visitor, accounts)


@router.post("/account/password")
def change_password(
    request: Request,
    visitor: Somebody,
    accounts: OwnAccounts,
    *,
    current: Field = "",
    password: Field = "",
    again: Field = "",
) -> Response:
    """Change the password, and end all other sessions."""
    if password != again:
        return _page(request, visitor, accounts, 422, again="The passwords differ.")
    try:
        accounts.change_password(visitor.identity.session_key, current, password)
    except InvalidInputError as error:
        return _page(request, visitor, accounts, 422, password=f"Refused: {error.problems[0].message}.")
    except SignInRefused:
        return _page(request, visitor, accounts, 422, current="Wrong password.")
    except SignInThrottled as error:
        return _page(request, visitor, accounts, 429, current=f"Try again in {wait_words(error.retry_after)}.")
    return redirect(request, "/account", done="password_changed")


@router.post("/account/sessions/end-others")
def end_others(request: Request, visitor: Somebody, accounts: OwnAccounts) -> Response:
    """End all other sessions."""
    accounts.end_all(visitor.caller.user_id, visitor.identity.session_key)
    return redirect(request, "/account", done="sessions_ended")


@router.post("/account/sessions/end-all")
def end_all(request: Request, visitor: Somebody, accounts: OwnAccounts) -> Response:
    """End all sessions, including this one."""
    accounts.end_all(visitor.caller.user_id)
    answer = redirect(request, "/login", done="signed_out")
    forget_cookie(request, accounts, answer)
    return answer


@router.post("/account/sessions/{session_id}/end")
def end_one(request: Request, session_id: str, visitor: Somebody, accounts: OwnAccounts) -> Response:
    """End one session of the user."""
    who = visitor.caller.user_id
    accounts.end_session(session_id, who, owner=who)
    return redirect(request, "/account", done="session_ended", about=session_id)


@router.post("/account/tokens")
def make_token(
    request: Request,
    visitor: Somebody,
    accounts: OwnAccounts,
    *,
    label: Field = "",
    days: Field = "",
    scopes: Annotated[list[str] | None, Form(max_length=len(Scope))] = None,
) -> Response:
    """Create a token and show its secret once."""
    require_fresh(request, visitor, back=own_path(request, "/account"))
    if days not in _DAYS:
        raise InvalidInputError.of("choose one of the listed times", pointer="/days")
    lifetime = timedelta(days=int(days)) if days else None
    try:
        token, secret = accounts.create_token(visitor.caller.user_id, label, scopes or (), lifetime)
    except InvalidInputError as error:
        wrong = {problem.pointer.split("/")[1]: f"Refused: {problem.message}." for problem in error.problems}
        return _page(request, visitor, accounts, 422, **wrong)
    about = f"The secret of the token {token.label}"
    once: dict[str, Any] = {"title": "New token", "about": about, "secret": secret, "back": "/account"}
    return render(request, "secret.html", visitor=visitor, **once)


@router.post("/account/tokens/{token_id}/revoke")
def revoke_token(request: Request, token_id: str, visitor: Somebody, accounts: OwnAccounts) -> Response:
    """Revoke one token of the user."""
    who = visitor.caller.user_id
    accounts.revoke_token(token_id, who, owner=who)
    return redirect(request, "/account", done="token_revoked", about=token_id)


@router.get("/account/confirm")
def ask_again(request: Request, visitor: Somebody, accounts: OwnAccounts) -> Response:  # noqa: ARG001 - only where there are accounts
    """Ask for the password again before an action that outlasts the session."""
    onward = safe_next(request, request.query_params.get("next", ""))
    return render(request, "confirm.html", visitor=visitor, next=onward, trouble="")


@router.post("/account/confirm")
def confirm(
    request: Request,
    visitor: Somebody,
    accounts: OwnAccounts,
    *,
    password: Field = "",
    next: Field = "",  # noqa: A002 - the name of the field
) -> Response:
    """Check the password and continue."""
    onward = safe_next(request, next)
    try:
        accounts.confirm_password(visitor.identity.session_key, password)
    except SignInRefused:
        return _asked(request, visitor, onward, 401, "Wrong password.")
    except SignInThrottled as error:
        return _asked(request, visitor, onward, 429, f"Try again in {wait_words(error.retry_after)}.")
    return RedirectResponse(onward, 303)


def _asked(request: Request, visitor: Visitor, onward: str, status: int, trouble: str) -> Response:
    return render(request, "confirm.html", visitor=visitor, status=status, next=onward, trouble=trouble)


def _page(request: Request, visitor: Visitor, accounts: Accounts, status: int = 200, **wrong: str) -> Response:
    who, about = visitor.caller.user_id, id_in_query(request, "about")
    sessions, tokens = accounts.sessions_of(who), accounts.tokens_of(who)
    shown: dict[str, Any] = {
        "person": accounts.person(who),
        "sessions": sessions,
        "present": visitor.identity.session_key,
        "tokens": tokens,
        "holds": {
            "password_changed": True,
            "sessions_ended": all(one.id == visitor.identity.session_key for one in sessions),
            "session_ended": bool(about) and all(one.id != about for one in sessions),
            "token_revoked": any(one.id == about and one.ended_at is not None for one in tokens),
        },
        "scopes": _SCOPES,
        "lifetimes": _LIFETIMES,
        "wrong": wrong,
    }
    return render(request, "account.html", visitor=visitor, status=status, **shown)
