"""Password confirmation of permanent approvals."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.access.risk import Risk, assess
from democrai_sandbox.errors import SignInRefused, SignInThrottled

from .visitors import require_fresh, sandbox_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from democrai_sandbox.access.values import AccessTuple

    from .visitors import Visitor

_RECENTLY = timedelta(minutes=5)
"""Maximum age of the password for an approval of high risk over the API, which has no form."""
_MINUTE = 60


class Refused(NamedTuple):
    """Reason why a confirmation failed."""

    status: int
    text: str
    retry_after: int = 0


def is_high_risk(access: AccessTuple) -> bool:
    """Return whether an approval is of high risk. Earlier decisions cannot raise the risk and are not read."""
    return assess(access).level is Risk.HIGH


def needs_password(request: Request, visitor: Visitor, accesses: Iterable[AccessTuple]) -> bool:
    """Return whether a permanent approval of these needs the password again.

    It does for a high risk, and if the password was entered too long ago. Users of an embedding application have no
    password here.
    """
    sandbox = sandbox_of(request)
    settings, accounts = sandbox.settings.console, sandbox.accounts
    if accounts is None or visitor.identity.scopes is not None:
        return False
    if settings.reauth_high_risk and any(map(is_high_risk, accesses)):
        return True
    late = timedelta(minutes=settings.reauth_minutes)
    return bool(settings.reauth_minutes) and not accounts.is_confirmed(visitor.identity.session_key, late)


def refused_password(request: Request, visitor: Visitor, password: str) -> Refused | None:
    """Check a password; return None if it is right. Failures count like failed sign-ins."""
    accounts = sandbox_of(request).accounts
    if accounts is None:
        return None
    if not password:
        return Refused(422, "Enter your password to confirm this.")
    try:
        accounts.confirm_password(visitor.identity.session_key, password)
    except SignInRefused:
        return Refused(401, "Wrong password.")
    except SignInThrottled as error:
        text = f"Too many wrong passwords. Try again in {wait_words(error.retry_after)}."
        return Refused(429, text, error.retry_after)
    return None


def require_recent_password(request: Request, visitor: Visitor, accesses: Iterable[AccessTuple]) -> None:
    """Refuse a permanent approval over the API if the session must confirm its password first."""
    require_fresh(request, visitor)
    if sandbox_of(request).settings.console.reauth_high_risk and any(map(is_high_risk, accesses)):
        require_fresh(request, visitor, within=_RECENTLY)


def wait_words(seconds: int) -> str:
    """Return a waiting time in words."""
    if seconds < _MINUTE:
        return f"{seconds} second" + ("" if seconds == 1 else "s")
    minutes = -(-seconds // _MINUTE)
    return f"{minutes} minute" + ("" if minutes == 1 else "s")
