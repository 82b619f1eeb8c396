"""Sign-in and sign-out. Works without JavaScript; a failed sign-in does not say whether the name exists."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from starlette.responses import RedirectResponse, Response

from democrai_sandbox.console.confirming import wait_words
from democrai_sandbox.console.rendering import redirect, render
from democrai_sandbox.console.returning import safe_next
from democrai_sandbox.console.visitors import sandbox_of, visit_of
from democrai_sandbox.errors import AccountUnknown, SignInRefused, SignInThrottled
from democrai_sandbox.host.accounts import Accounts
from democrai_sandbox.host.accounts.desk import is_secure

if TYPE_CHECKING:
    from democrai_sandbox.host.accounts import SignedIn

router = APIRouter()
_LONGEST = 4096
_REFUSED = "The name or the password is wrong."


def own_accounts(request: Request) -> Accounts:
    """Return the accounts; an application with its own users has no such page."""
    found = sandbox_of(request).accounts
    if found is None:
        raise HTTPException(404)
    return found


OwnAccounts = Annotated[Accounts, Depends(own_accounts)]
Field = Annotated[str, Form(max_length=_LONGEST)]


@router.get("/login")
def show_sign_in(request: Request, accounts: OwnAccounts) -> Response:
    """Ask for name and password, or redirect a signed-in user."""
    onward = safe_next(request, request.query_params.get("next", ""))
    identity = accounts.identify(visit_of(request))
    if identity is not None and accounts.roles(identity.user_id) is not None:
        return RedirectResponse(onward, 303)
    return render(request, "login.html", next=onward, name="", trouble="", holds={"signed_out": True})


@router.post("/login")
def sign_in(
    request: Request,
    accounts: OwnAccounts,
    *,
    name: Field = "",
    password: Field = "",
    next: Field = "",  # noqa: A002 - the name of the field
) -> Response:
    """Start a session with a new secret, and redirect."""
    onward = safe_next(request, next)
    visit = visit_of(request)
    before = accounts.identify(visit)
    try:
        signed_in = accounts.sign_in(name, password, visit)
    except SignInRefused:
        return render(request, "login.html", status=401, next=onward, name=name, trouble=_REFUSED)
    except SignInThrottled as error:
        page = render(request, "login.html", status=429, next=onward, name=name, trouble=_throttled(error))
        page.headers["Retry-After"] = str(error.retry_after)
        return page
    if before is not None and before.scopes is None:
        with suppress(AccountUnknown):
            accounts.sign_out(before.session_key)
    return _with_cookie(request, accounts, signed_in, RedirectResponse(onward, 303))


@router.post("/logout")
def sign_out(request: Request, accounts: OwnAccounts) -> Response:
    """End the session, here and in the database."""
    identity = accounts.identify(visit_of(request))
    if identity is not None and identity.scopes is None:
        with suppress(AccountUnknown):
            accounts.sign_out(identity.session_key)
    answer = redirect(request, "/login", done="signed_out")
    forget_cookie(request, accounts, answer)
    return answer


def forget_cookie(request: Request, accounts: Accounts, answer: Response) -> None:
    """Delete the cookie of an ended session."""
    secure = is_secure(sandbox_of(request).settings)
    answer.delete_cookie(accounts.cookie_name, path="/", secure=secure, httponly=True, samesite="lax")


def _throttled(error: SignInThrottled) -> str:
    return f"Too many sign-ins have failed. Try again in {wait_words(error.retry_after)}."


def _with_cookie(request: Request, accounts: Accounts, signed_in: SignedIn, answer: Response) -> Response:
    secure = is_secure(sandbox_of(request).settings)
    answer.set_cookie(accounts.cookie_name, signed_in.token, path="/", secure=secure, httponly=True, samesite="lax")
    return answer
