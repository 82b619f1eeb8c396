"""People, sessions and tokens."""

from __future__ import annotations

import errno

from democrai_sandbox.policy import SandboxError


class NotSignedIn(SandboxError, PermissionError):  # noqa: N818 - it says what is missing
    """Nobody is known to send this request; a person signs in at ``location``."""

    code = "not_signed_in"

    def __init__(self, location: str = "") -> None:
        """Say where a person signs in, and comes back from."""
        super().__init__(errno.EACCES, "nobody is signed in")
        self.location = location

    def __str__(self) -> str:
        """Say it without the address."""
        return "nobody is signed in"


class ConfirmationNeeded(SandboxError, PermissionError):  # noqa: N818 - it says what is missing
    """The password was given too long ago for this act; it is given again at ``location``."""

    code = "confirmation_needed"

    def __init__(self, location: str = "") -> None:
        """Say where the password is given again."""
        super().__init__(errno.EACCES, "the password has to be given again")
        self.location = location

    def __str__(self) -> str:
        """Say it without the address."""
        return "the password has to be given again"


class ScopeMissing(SandboxError, PermissionError):  # noqa: N818 - it says what is missing
    """The token is good for other things than this."""

    code = "scope_missing"

    def __init__(self, scope: str) -> None:
        """Name the scope that would do."""
        super().__init__(errno.EACCES, scope)
        self.scope = str(scope)

    def __str__(self) -> str:
        """Name what is missing."""
        return f"the token lacks the scope {self.scope}"


class SignInRefused(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """Name and password do not belong together, or the person is shut out: which of them is not told."""

    code = "sign_in_refused"

    def __str__(self) -> str:
        """Say no more than that."""
        return "the name or the password is wrong"


class SignInThrottled(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """Too many sign-ins failed; the next is tried after ``retry_after`` seconds. Nothing was compared."""

    code = "sign_in_throttled"

    def __init__(self, retry_after: int) -> None:
        """Say how long to wait."""
        super().__init__(retry_after)
        self.retry_after = retry_after

    def __str__(self) -> str:
        """Say how long to wait."""
        return f"too many sign-ins failed: try again in {self.retry_after} s"


class AccountUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """There is no such person, session or token, or none that the one who asks may touch."""

    code = "account_unknown"


class AccountConflict(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """A name is taken, or what was asked would leave nobody who can decide; nothing was changed."""

    code = "account_conflict"
