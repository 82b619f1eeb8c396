"""Why a host does not start."""

from __future__ import annotations

from democrai_sandbox.policy import InvalidInputError, SandboxError


class ConfigInvalid(InvalidInputError):  # noqa: N818 - it says what is wrong
    """The configuration was refused: each problem says in which file and line, or in which variable."""

    code = "config_invalid"


class IdempotencyConflict(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """An idempotency key was used for another request, or its answer was not kept. Nothing was done."""

    code = "idempotency_conflict"


class IdempotencyRunning(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """The first request with an idempotency key has no answer yet. Nothing was done."""

    code = "idempotency_running"


class HostRefused(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """The host does not start, and says what would let it. Nothing was changed."""

    code = "host_refused"

    def __init__(self, what: str, *, fix: str = "") -> None:
        """Say what is wrong, and what to do about it."""
        super().__init__(what)
        self.what = what
        self.fix = fix

    def diagnostics(self) -> str:
        """Return what is wrong and the fix below it."""
        head = f"{self.code}: {self.what}"
        return f"{head}\n  to fix it: {self.fix}" if self.fix else head


class StateUnusable(HostRefused):
    """A folder or file that the host keeps its state in cannot be made, read or written."""

    code = "host_state_unusable"


class DatabaseUnreachable(StateUnusable):
    """The database server does not answer, or refuses connections; it may do so later."""

    code = "host_database_unreachable"


class AddressTaken(HostRefused):
    """The address to listen at belongs to somebody else already, or is none of this machine's."""

    code = "host_address_taken"
