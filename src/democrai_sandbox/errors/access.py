"""What asking for approval and deciding about it can come to, beside a denial."""

from __future__ import annotations

import errno

from democrai_sandbox.policy import SandboxError


class ExternalAccessCheckFailed(SandboxError, RuntimeError):  # noqa: N818 - named after its code
    """The approval check itself failed: nothing was decided and nothing was allowed."""

    code = "sandbox_external_access_check_failed"
    is_logged = False
    """Whether the code that raised it has logged the cause; the guard logs the failure of a decider otherwise."""

    def __str__(self) -> str:
        """Return the code; the cause is chained."""
        return self.code


class StoreUnavailable(ExternalAccessCheckFailed):
    """The database could not be reached or did not answer; what was to be written was not."""


class StoreBusy(StoreUnavailable):
    """All connections of this process to the database were in use for too long."""

    def __init__(self, connections: int) -> None:
        """Keep how many there are: ``database.connections``."""
        super().__init__(connections)
        self.connections = connections


class ExternalAccessAdminRequired(SandboxError, PermissionError):  # noqa: N818 - named after its code
    """Only a super user who is not scoped to an organization decides, and never guarded code about itself."""

    code = "external_access_admin_required"

    def __init__(self, why: str = "") -> None:
        """Say why this caller may not decide."""
        super().__init__(errno.EACCES, why)
        self.why = why

    def __str__(self) -> str:
        """Return the documented shape, which is the code alone."""
        return self.code

    def diagnostics(self) -> str:
        """Return the code and what is missing."""
        return f"{self.code}: {self.why}" if self.why else self.code


class RequestUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No request has this id."""

    code = "external_access_request_unknown"


class DecisionUnknown(SandboxError, LookupError):  # noqa: N818 - it says what happened
    """No decision has this id."""

    code = "external_access_decision_unknown"


class DecisionConflict(SandboxError, RuntimeError):  # noqa: N818 - it says what happened
    """Somebody else decided first, or another decision stands in the way; nothing was changed."""

    code = "external_access_conflict"


class SchemaOutdated(SandboxError, RuntimeError):  # noqa: N818 - it says what is wrong
    """The database has another schema than this version needs; the text names the command that upgrades it."""

    code = "external_access_schema_outdated"


class ResumeContextUnreadable(SandboxError, ValueError):  # noqa: N818 - it says what is wrong
    """A stored resume context does not decrypt: its key is gone, or it was changed or moved to another request."""

    code = "external_access_resume_context_unreadable"
