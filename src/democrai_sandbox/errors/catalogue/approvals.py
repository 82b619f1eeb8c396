"""Asking for approval, and deciding about it."""

from __future__ import annotations

from .entry import Entry, Layer

APPROVALS = (
    Entry(
        code="sandbox_external_access_check_failed",
        title="No decision could be had",
        layer=Layer.ACCESS,
        meaning=(
            "What had to be asked could not answer. The operation was not carried out, nothing was allowed, "
            "and nothing was written: neither a request nor a decision."
        ),
        cause=(
            "The decider raised an error when it was asked about a file or a network target that no rule "
            "allows, or the observer did when it was told of a permitted connection. The error is the "
            "`__cause__`: often a service or database that is down. A node of the access-policy service that "
            "could never read its database answers like this to everything."
        ),
        fix=(
            "Mend what the cause names. Do not treat this as a denial: adding rules is not the answer. The next "
            "attempt asks again. access-service.md says what goes on meanwhile."
        ),
        classes=("ExternalAccessCheckFailed", "StoreUnavailable", "StoreBusy"),
        remark=(
            "A `RuntimeError`, **not** a `PermissionError`. When it is the database of the access-policy "
            "service that could not be reached, or did not answer within five seconds, it is the subclass "
            "`StoreUnavailable`; inside a guard that is the `__cause__`. When all connections of the process were in "
            "use for that long, it is `StoreBusy`, a subclass of that: raise `database.connections`."
        ),
        see=("access-service.md#when-something-is-away",),
    ),
    Entry(
        code="external_access_admin_required",
        title="This user may not decide",
        layer=Layer.ACCESS,
        shape="external_access_admin_required",
        meaning="The caller may not decide about external access, nor list what was asked for and decided.",
        cause=(
            "No user is present, the user is scoped to an organization, or has neither the super role nor the "
            "super access level. Or the call comes from guarded code, for whomever it runs: only code that the "
            "host named as a manager decides, and never about itself. A tool of the host that calls from "
            "outside a request has nobody present either."
        ),
        fix=(
            "Have it decided by a user who may: present, not scoped to an organization, with the super role or "
            "the super access level; in the console, an administrator. In the host, make the call inside "
            "`serving(Caller(...))` of the user it is for. An approval for a session also needs a session key: "
            "without one, `approve_for_session` does nothing."
        ),
        classes=("ExternalAccessAdminRequired",),
        remark="A `PermissionError`. The text is the code; `why`, and `diagnostics()`, say what was missing.",
    ),
    Entry(
        code="external_access_request_unknown",
        title="No request has this id",
        layer=Layer.ACCESS,
        meaning="No request has this id.",
        cause=(
            "A mistyped or cut id, the id of a decision in its place, another database, or one that was "
            "restored from a backup made before the request."
        ),
        fix="Take the id from `pending_requests()`.",
        classes=("RequestUnknown",),
        remark="A `LookupError`.",
    ),
    Entry(
        code="external_access_decision_unknown",
        title="No decision has this id",
        layer=Layer.ACCESS,
        meaning="No decision has this id.",
        cause="As above; often the id of the request was given.",
        fix="Take the id from `approvals()` or `denials()`.",
        classes=("DecisionUnknown",),
        remark="A `LookupError`.",
    ),
    Entry(
        code="external_access_record_unknown",
        title="No record of the audit has this number",
        layer=Layer.ACCESS,
        meaning="No record of the audit has this number.",
        cause="A number beyond the last record, or the address of a record in the audit of another database.",
        fix="Take the number from `history()`: they go from 1 up to that of the latest record, without gaps.",
        classes=("AuditRecordUnknown",),
        remark="A `LookupError` of `democrai_sandbox.access.lookups`.",
    ),
    Entry(
        code="external_access_conflict",
        title="Somebody else was first, or another decision stands in the way",
        layer=Layer.ACCESS,
        meaning="What is to be decided is not as it was when it was looked at. Nothing was changed.",
        cause=(
            "Somebody else has decided about the request first, or ended the decision; the text says who, what "
            "and when. The request was given up because nobody decided in time. Or a denial that covers more "
            "would keep an approval from having any effect; the text names it."
        ),
        fix=(
            "Look at the list again. Nothing to do if the other decision suits you; otherwise revoke that one, "
            "and decide about the next request. For a denial that covers more: revoke it, or approve something "
            "that it does not cover."
        ),
        classes=("DecisionConflict",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="external_access_schema_outdated",
        title="The database has another schema",
        layer=Layer.ACCESS,
        meaning=(
            "The database of the access-policy service has another schema than this version of the code "
            "needs. The service does not start."
        ),
        cause="An update of the package, or a database that a newer version has upgraded already.",
        fix=(
            "Make a backup, then run the command that the text names, `democrai-sandbox db upgrade`, once. For a "
            "database of a newer version, install that one."
        ),
        classes=("SchemaOutdated",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="external_access_resume_context_unreadable",
        title="What a request was to go on with does not decrypt",
        layer=Layer.ACCESS,
        meaning=(
            "What an approved request was to go on with does not decrypt. The approval stands; the action "
            "was not run, and is not tried again."
        ),
        cause=(
            "The key it was sealed with is not in the key file: retired too early, or the file was not copied "
            "to this host. Or the stored context was changed, or moved to another request."
        ),
        fix=(
            "Keep one key file on all hosts, and retire a key only after resealing. Have the user ask again. If "
            "the keys are right, somebody has changed the database: see its audit."
        ),
        classes=("ResumeContextUnreadable",),
        remark="A `ValueError`.",
        see=("access-service.md#keys",),
    ),
    Entry(
        code="sandbox_allowlist",
        title="Allowed by the declarations",
        layer=Layer.ACCESS,
        meaning="A check was answered with yes: the declarations of the subject, or of what encloses it, cover it.",
        cause="An entry of the manifest, or what the runtime gives to every subject.",
        fix=(
            "Nothing is to be done. To take it away, take the entry out of the manifest: no denial stands before "
            "a declaration."
        ),
        see=("approvals.md",),
    ),
    Entry(
        code="session_approval",
        title="Allowed for this session",
        layer=Layer.ACCESS,
        meaning="A check was answered with yes: an administrator has approved it for this session.",
        cause="The session key of the request is that of the approval.",
        fix=(
            "Nothing is to be done. It ends with the session, or when it is revoked. In another session it has "
            "to be approved again."
        ),
        see=("approvals.md",),
    ),
    Entry(
        code="permanent_approval",
        title="Allowed until it is revoked",
        layer=Layer.ACCESS,
        meaning="A check was answered with yes: an administrator has approved it for all users and sessions.",
        fix="Nothing is to be done. It ends when it is revoked.",
        see=("approvals.md",),
    ),
    Entry(
        code="denied",
        title="An administrator has denied it",
        layer=Layer.ACCESS,
        meaning=(
            "A check was answered with no: an administrator has denied exactly this, or something that covers it."
        ),
        cause="A recorded denial; the message has the reason, if one was given.",
        fix=(
            "An administrator has to revoke the denial before the same subject, operation and target can be "
            "allowed. Asking again puts no request down."
        ),
        see=("approvals.md",),
    ),
    Entry(
        code="pending",
        title="A request waits for a decision",
        layer=Layer.ACCESS,
        meaning=(
            "A check was answered with no for now: a request has been put down and nobody has decided about "
            "it. `request_id` is its id."
        ),
        fix="Wait for an administrator to decide about the request. An approval takes effect without a restart.",
        see=("approvals.md",),
    ),
    Entry(
        code="not_enabled",
        title="Neither declared nor approved",
        layer=Layer.ACCESS,
        meaning=(
            "A check was answered with no: neither a declaration nor a decision covers it, and no request was put down."
        ),
        cause=(
            "The check was made with `register_request=False`, the subject has as many requests waiting as it "
            "may, or what was asked for cannot be approved."
        ),
        fix="Declare it, or ask with `register_request=True`.",
        see=("approvals.md",),
    ),
)
