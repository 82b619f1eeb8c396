"""Errors of sign-in, sessions, tokens and user accounts."""

from __future__ import annotations

import errno

from democrai_sandbox.policy import SandboxError


class NotSignedIn(SandboxError, PermissionError):
    """The HTTP request has no valid session or token.

    The API answers 401; a page redirects to ``location``, the sign-in page.
    """

    code = "not_signed_in"
    guidance = """
    Cause: The session is missing, expired or ended, or its user is disabled; or the token is wrong, expired or revoked.
    Tokens work for the API only, and only in the `Authorization` header.
    Fix: Sign in, or send `Authorization: Bearer dsb_...` with a valid token.
    Example:
    GET /api/v1/requests     (no Authorization header)
    -> 401 {"code": "not_signed_in", ...}
    See: api.md
    """

    def __init__(self, location: str = "") -> None:
        super().__init__(errno.EACCES, "the caller is not signed in")
        self.location = location

    def __str__(self) -> str:
        """Return the text without the address."""
        return "the caller is not signed in"


class ConfirmationNeeded(SandboxError, PermissionError):
    """The password is needed again for this action.

    The user is signed in, but last entered the password more than ``console.reauth_minutes`` ago (five minutes for a
    permanent approval of high risk). Nothing was done. A page redirects to ``location``.
    """

    code = "confirmation_needed"
    guidance = """
    Cause: The action outlasts the session, such as a permanent approval or a new token.
    Fix: Enter the password at `/account/confirm` and repeat the action. Tokens never need a confirmation.
    Example:
    Sign in, wait 20 minutes, then approve a request permanently:
    -> the console asks for the password first
    See: accounts.md
    """

    def __init__(self, location: str = "") -> None:
        super().__init__(errno.EACCES, "the password has to be given again")
        self.location = location

    def __str__(self) -> str:
        """Return the text without the address."""
        return "the password has to be given again"


class ScopeMissing(SandboxError, PermissionError):
    """The token lacks the scope for this call.

    The token is valid, but only for other calls. ``scope`` names the scope that is needed. Nothing was done.
    """

    code = "scope_missing"
    guidance = """
    Cause: The token was created with other scopes.
    Fix: Create a token with the scope that the text names, for example with `democrai-sandbox admin token create
    --scope`. A scope never grants more than the owner of the token may do.
    Example:
    GET /api/v1/audit     (token with the scope requests:read only)
    -> 403 {"code": "scope_missing", "detail": "the token lacks the scope audit:read", ...}
    See: api.md
    """

    def __init__(self, scope: str) -> None:
        super().__init__(errno.EACCES, scope)
        self.scope = str(scope)

    def __str__(self) -> str:
        return f"the token lacks the scope {self.scope}"


class SignInRefused(SandboxError, RuntimeError):
    """Wrong name or password, or the account is disabled.

    The answer and its duration are the same in all three cases, so that names cannot be guessed.
    """

    code = "sign_in_refused"
    guidance = """
    Cause: The name or the password is mistyped, the account does not exist, or an administrator disabled it.
    Fix: Type both again. An administrator can set a new password under Users in the console, or with `democrai-sandbox
    admin passwd NAME`.
    Example:
    POST /login   name=uma   password=(mistyped)
    -> 401, and the form says: the name or the password is wrong
    See: accounts.md
    """

    def __str__(self) -> str:
        """Return a text that reveals neither case."""
        return "the name or the password is wrong"


class SignInThrottled(SandboxError, RuntimeError):
    """Too many sign-ins failed; wait before the next one.

    The password was not compared, so the right one is delayed too. ``retry_after`` is the waiting time in seconds.
    """

    code = "sign_in_throttled"
    guidance = """
    Cause: After five failures of a name from one address, each further attempt waits 1, 2, 4 seconds and so on, up to
    15 minutes. After fifty failures of a name from all addresses, or of one address with any names, each attempt waits
    up to 30 seconds, except for a name at an address where it signed in before. Too many sign-ins at the same moment
    have the same result.
    Fix: Wait for the stated time. A successful sign-in, or one day, resets the count.
    Example:
    POST /login   (the sixth wrong password in a row)
    -> 429, Retry-After: 1, and the form says: too many sign-ins failed: try again in 1 s
    See: accounts.md
    """

    def __init__(self, retry_after: int) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"too many sign-ins failed: try again in {self.retry_after} s"


class AccountUnknown(SandboxError, LookupError):
    """No such user, session or token, or none that the caller may manage.

    Nothing was changed. A session or token of another user looks the same as a missing one.
    """

    code = "account_unknown"
    guidance = """
    Cause: The id is mistyped, or the session or token ended in the meantime or belongs to another user.
    Fix: Reload the list and use an id from it.
    Example:
    DELETE /api/v1/tokens/01K9ZZZZZZZZZZZZZZZZZZZZZZ
    -> 404 {"code": "account_unknown", ...}
    See: accounts.md
    """


class AccountConflict(SandboxError, RuntimeError):
    """A change of users or tokens conflicts with the existing ones.

    Nothing was changed. The text names the conflict.
    """

    code = "account_conflict"
    guidance = """
    Cause: The name is taken, perhaps by a disabled user: a name in the audit log is never given to another user. Or the
    change would leave no user who can decide. Or the user has the maximum number of tokens.
    Fix: Choose another name, make another user an administrator first, or revoke a token.
    Example:
    $ democrai-sandbox admin disable root     # the only administrator
    -> account_conflict
    See: accounts.md
    """
