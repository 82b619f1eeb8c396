"""Errors of requests and decisions, apart from denials."""

from __future__ import annotations

import errno

from democrai_sandbox.policy import SandboxError


class ExternalAccessCheckFailed(SandboxError, RuntimeError):
    """The access check itself failed.

    Nothing was decided: the operation did not run, nothing was allowed, and no request was filed. This is not a
    ``PermissionError``. ``StoreUnavailable`` means that the database did not answer within five seconds;
    ``StoreBusy`` means that all its connections were in use for that long. Inside a guard, these are the
    ``__cause__``.
    """

    code = "sandbox_external_access_check_failed"
    guidance = """
    Cause: The decider of the host raised an error, or the observer of permitted connections did. The error is the
    `__cause__`: usually a database or service that is down. A node that has never read its database answers every
    question like this.
    Fix: Fix the failure that the cause names, then retry. Do not add rules: this is not a denial. For `StoreBusy`,
    raise `database.connections`.
    Example:
    sdk.access.check_external_access(resource_type="network", operation="receive", target="https://api.example.com")
    -> ExternalAccessCheckFailed: sandbox_external_access_check_failed
       caused by StoreUnavailable: the PostgreSQL server is down
    See: access-service.md#when-something-is-away
    """
    is_logged = False
    """Whether the code that raised it has logged the cause. Otherwise the guard logs it."""

    def __str__(self) -> str:
        """Return the code; the cause is chained."""
        return self.code


class StoreUnavailable(ExternalAccessCheckFailed):
    """The database cannot be reached or did not answer in time; nothing was written."""


class StoreBusy(StoreUnavailable):
    """All connections of this process to the database were in use for too long."""

    def __init__(self, connections: int) -> None:
        super().__init__(connections)
        self.connections = connections


class ExternalAccessAdminRequired(SandboxError, PermissionError):
    """The caller may not decide about external access.

    Deciding, and listing requests and decisions, needs a user who is not scoped to an organization and has the super
    role or the super access level. ``why`` and ``diagnostics()`` say what is missing; the text is the code alone.
    """

    code = "external_access_admin_required"
    guidance = """
    Shape: external_access_admin_required
    Cause: No user is present, or the user is scoped to an organization, or has neither the super role nor the super
    access level. Or guarded code made the call: only a manager named by the host may decide, and never about itself. A
    script of the host that calls outside of a served request has no user either.
    Fix: Let an administrator decide in the console, or with `democrai-sandbox requests approve`. In the host, make the
    call inside `serving(Caller(...))` with a user who may decide. A session approval also needs a session key: without
    one, `approve_for_session` stores nothing.
    Example:
    with serving(Caller(user_id="uma")):  # an ordinary user
        access.administration.approve_permanently(request_id)
    -> ExternalAccessAdminRequired: external_access_admin_required
    See: approvals.md
    """

    def __init__(self, why: str = "") -> None:
        super().__init__(errno.EACCES, why)
        self.why = why

    def __str__(self) -> str:
        """Return the code alone, the documented shape."""
        return self.code

    def diagnostics(self) -> str:
        """Return the code and the missing right."""
        return f"{self.code}: {self.why}" if self.why else self.code


class RequestUnknown(SandboxError, LookupError):
    """No request has this id.

    Nothing was decided. Requests are kept after a decision, so an answered request is not the reason.
    """

    code = "external_access_request_unknown"
    guidance = """
    Cause: The id is mistyped or cut off, is the id of a decision, belongs to another database, or is newer than the
    backup from which the database was restored.
    Fix: Copy the id from `democrai-sandbox requests list`, the console, or `pending_requests()`.
    Example:
    $ democrai-sandbox requests approve 01K9ZZZZZZZZZZZZZZZZZZZZZZ --session
    external_access_request_unknown: ... 01K9ZZZZZZZZZZZZZZZZZZZZZZ
    """


class DecisionUnknown(SandboxError, LookupError):
    """No decision has this id.

    Nothing was revoked or undone. Ended decisions keep their ids, so an ended decision is not the reason.
    """

    code = "external_access_decision_unknown"
    guidance = """
    Cause: The id is mistyped or cut off, belongs to another database, or is the id of the request instead of the
    decision that answered it.
    Fix: Copy the id from `democrai-sandbox approvals list`, the console, `approvals()` or `denials()`.
    Example:
    $ democrai-sandbox approvals revoke 01K9ZZZZZZZZZZZZZZZZZZZZZZ
    external_access_decision_unknown: ... 01K9ZZZZZZZZZZZZZZZZZZZZZZ
    """


class AuditRecordUnknown(SandboxError, LookupError):
    """No audit record has this number.

    Records are numbered from 1 to the number of the latest record, without gaps.
    """

    code = "external_access_record_unknown"
    guidance = """
    Cause: The number is higher than the latest record, or the address belongs to another database.
    Fix: Copy the number from `democrai-sandbox audit tail`, the audit page, or `history()`.
    Example:
    GET /api/v1/audit/999999
    -> 404 {"code": "external_access_record_unknown", ...}
    """


class DecisionConflict(SandboxError, RuntimeError):
    """The request or decision changed in the meantime, or another decision blocks this one.

    Nothing was changed. The text names the other decision, its user and its time.
    """

    code = "external_access_conflict"
    guidance = """
    Cause: Another administrator decided first or ended the decision; the request expired; its session ended; or a
    broader denial would make the approval ineffective.
    Fix: Reload the list. Keep the other decision, or revoke it and decide about the next request. Revoke a broader
    denial first, or approve a target that it does not cover.
    Example:
    Two administrators open the same request. The first denies it, the second approves it:
    -> external_access_conflict, and the denial stays in force
    See: approvals.md
    """


class SchemaOutdated(SandboxError, RuntimeError):
    """The database schema does not match this version.

    The service does not start, and the database was not changed. The text names the command to run.
    """

    code = "external_access_schema_outdated"
    guidance = """
    Cause: The package was updated, or a newer version has already upgraded the database.
    Fix: Back up the database, then run `democrai-sandbox db upgrade` once. If the database belongs to a newer version,
    install that version.
    Example:
    $ democrai-sandbox serve     # after an update of the package
    external_access_schema_outdated: ... run democrai-sandbox db upgrade
    See: deployment.md
    """


class ResumeContextUnreadable(SandboxError, ValueError):
    """A stored resume context cannot be decrypted.

    The approval stays in force. The resume action did not run and is not retried.
    """

    code = "external_access_resume_context_unreadable"
    guidance = """
    Cause: The key that encrypted it is not in the key file: it was retired too early, or the file was not copied to
    this host. Or the stored context was changed, or moved to another request.
    Fix: Use one key file on all hosts, and retire a key only after `democrai-sandbox db rotate-key` has re-encrypted
    the contexts. Then let the user repeat the action. If the keys are right, the database was tampered with: verify it
    with `democrai-sandbox audit verify`.
    Example:
    Node B has another key file than node A. A request filed on A is approved on B:
    -> the request shows external_access_resume_context_unreadable, and the user has to repeat the action
    See: access-service.md#keys
    """
