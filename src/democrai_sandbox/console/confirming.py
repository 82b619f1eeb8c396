"""Permanent approvals and the password: when it is asked for again, and whether what was typed is right."""

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
"""How old the password of a session may be that approves something of high risk over the API, which has no form."""
_MINUTE = 60


class Refused(NamedTuple):
    """Why what was typed is not enough."""

    status: int
    text: str
    retry_after: int = 0


def is_high_risk(access: AccessTuple) -> bool:
    """Tell whether an approval is a high risk. Earlier decisions make none high, so they are not looked at."""
    return assess(access).level is Risk.HIGH


def needs_password(request: Request, visitor: Visitor, accesses: Iterable[AccessTuple]) -> bool:
    """Tell whether a permanent approval of these takes the password again.

    It does for a high risk, and when the password was given too long ago. Who signs in elsewhere has none here.
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
    """Compare a password; None when it is right. Guesses are counted like those at the sign-in."""
    accounts = sandbox_of(request).accounts
    if accounts is None:
        return None
    if not password:
        return Refused(422, "Enter your password to confirm this.")
    try:
        accounts.confirm_password(visitor.identity.session_key, password)
    except SignInRefused:
        return Refused(401, "This is not your password.")
    except SignInThrottled as error:
        text = f"Too many wrong passwords. Try again in {wait_words(error.retry_after)}."
        return Refused(429, text, error.retry_after)
    return None


def require_recent_password(request: Request, visitor: Visitor, accesses: Iterable[AccessTuple]) -> None:
    """Refuse a permanent approval over the API for which a session has to give its password first."""
    require_fresh(request, visitor)
    if sandbox_of(request).settings.console.reauth_high_risk and any(map(is_high_risk, accesses)):
        require_fresh(request, visitor, within=_RECENTLY)


def wait_words(seconds: int) -> str:
    """Return how long to wait, as people say it."""
    if seconds < _MINUTE:
        return f"{seconds} second" + ("" if seconds == 1 else "s")
    minutes = -(-seconds // _MINUTE)
    return f"{minutes} minute" + ("" if minutes == 1 else "s")
