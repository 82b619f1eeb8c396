"""Arguments of the commands about accesses: ``requests``, ``approvals``, ``audit``, ``shadow`` and ``explain``."""

from __future__ import annotations

from .choices import OPERATIONS, REQUEST_STATES, RESOURCE_TYPES, SCOPES
from .options import (
    LIMIT,
    NODE,
    YES,
    a_number,
    a_subject,
    a_text,
    an_id,
    argument,
    arguments,
    either,
    filters,
    flag,
    one_of,
    span,
    verb,
    verbs,
)

_REQUEST_FILTERS = (
    *("subject", "kind", "resource_type", "operation", "user", "organization", "session", "text"),
    *("newer_than", "older_than"),
)
_REQUESTS = argument("ids", "ID", "id of a request", nargs="+", type=an_id)
_TARGET = argument(
    "--target", "TARGET", "decide about this target instead; it must cover the requested one", type=a_text
)
_REASON = "reason, kept in the audit log"
_PREVIEW = (flag("--dry-run", "show the result for each request, and change nothing"), YES)

requests_arguments = verbs(
    verb(
        "list",
        "list requests",
        "List requests, most recently seen first.",
        "requests:run_list",
        one_of(
            "--state",
            "STATE",
            "with this state; may be repeated (default: pending)",
            REQUEST_STATES,
            action="append",
        ),
        flag("--grouped", "one row per access, highest risk first"),
        filters(*_REQUEST_FILTERS),
        LIMIT,
    ),
    verb(
        "show",
        "show a request",
        "Show a request with the facts for a decision.",
        "requests:run_show",
        argument("id", "ID", "id of the request", type=an_id),
    ),
    verb(
        "approve",
        "approve requests",
        "Approve requests: the access is allowed on every node until the approval ends or is revoked.",
        "requests:run_approve",
        _REQUESTS,
        either(
            flag("--session", "until the session of the request ends"),
            flag("--permanent", "until it is revoked"),
            argument("--for", "TIME", "for this time, such as 2h or 7d", dest="lifetime", type=span),
            required=True,
        ),
        _TARGET,
        argument("--reason", "TEXT", _REASON, type=a_text),
        *_PREVIEW,
    ),
    verb(
        "deny",
        "deny requests",
        "Deny requests: the access stays refused and files no new requests until the denial is revoked.",
        "requests:run_deny",
        _REQUESTS,
        _TARGET,
        argument("--reason", "TEXT", _REASON, type=a_text, required=True),
        *_PREVIEW,
    ),
    shared=NODE,
)

_DECISIONS = (
    flag("--denials", "denials instead of approvals"),
    one_of("--scope", "SCOPE", "with this scope", SCOPES),
    filters("subject", "resource_type", "operation", "session", "text"),
)

approvals_arguments = verbs(
    verb(
        "list",
        "list approvals or denials",
        "List approvals or denials, newest first.",
        "requests:run_list_decisions",
        argument(
            "--state",
            None,
            "in force, ended, or both (default: live)",
            choices=("live", "ended", "any"),
            default="live",
        ),
        LIMIT,
        *_DECISIONS,
    ),
    verb(
        "revoke",
        "revoke approvals or denials",
        "Revoke approvals or denials on every node. Their targets are undecided afterwards.",
        "requests:run_revoke",
        argument("ids", "ID", "id of an approval or denial; or use filters", nargs="*", type=an_id),
        argument("--reason", "TEXT", _REASON, type=a_text),
        flag("--dry-run", "show what would be revoked, and change nothing"),
        YES,
        *_DECISIONS,
    ),
    shared=NODE,
)

_RECORDS = filters("action", "actor", "subject", "request", "since", "until")
_USUAL_RECORDS = 20
_CONFIGURED_DATABASE = ""

audit_arguments = verbs(
    verb(
        "tail",
        "show the last records",
        "Show the last records, newest last.",
        "requests:run_tail",
        argument("-n", "N", f"number of records (default: {_USUAL_RECORDS})", type=a_number, default=_USUAL_RECORDS),
        flag("-f", "print new records until interrupted", "--follow"),
        _RECORDS,
    ),
    verb(
        "export",
        "export records",
        "Export records, oldest first, as JSON lines (which audit verify accepts) or as CSV.",
        "requests:run_export",
        argument("--format", None, "default: jsonl", choices=("jsonl", "csv"), default="jsonl"),
        argument("--output", "FILE", "write to this file instead of standard output, completely or not at all"),
        YES,
        _RECORDS,
    ),
    verb(
        "verify",
        "verify the hash chain",
        "Verify the hash chain from the first record to the last. Changes nothing.",
        "requests:run_verify",
        either(
            argument(
                "--database",
                "URL",
                "read this database, or that of the configuration, instead of a node; for stopped nodes and backups",
                nargs="?",
                const=_CONFIGURED_DATABASE,
            ),
            argument("--export", "FILE", "verify a jsonl file written by audit export"),
        ),
    ),
    shared=NODE,
)

_SHADOW = argument("id", "ID", "id of the shadow run", type=an_id)

shadow_arguments = verbs(
    verb(
        "start",
        "start a shadow run",
        "Start a shadow run on all nodes: compare a candidate manifest with the current one. The current one decides.",
        "extensions:run_start",
        argument("--subject", "KIND:NAME", "such as module:reports", type=a_subject, required=True),
        argument("--manifest", "FILE", "the candidate; its name must be that of the subject", required=True),
        flag("--dry-run", "only check the candidate"),
        YES,
    ),
    verb("list", "list shadow runs", "List shadow runs, active ones first.", "extensions:run_list_shadows"),
    verb(
        "show",
        "show the findings",
        "Show the accesses that the candidate would newly deny or allow. The exit status is 1 if it would deny one.",
        "extensions:run_show",
        _SHADOW,
    ),
    verb(
        "stop",
        "stop a shadow run",
        "Stop a shadow run on all nodes. Its findings are kept.",
        "extensions:run_stop",
        _SHADOW,
        flag("--dry-run", "show what would be stopped, and change nothing"),
        YES,
    ),
    shared=NODE,
)

_EXPLAIN = """\
Explain an error line and the current state, or predict an access of a subject: the layer and rule that decide, and the
declaration or approval that would change it. Changes nothing.

  explain 'sandbox_filesystem_denied:reports:/etc/passwd'      a line; - reads it from standard input
  explain --code sandbox_network_denied                        a code
  explain --subject module:reports --operation receive --target https://api.example.com/v1

If no node answers, a line is explained from the error catalog alone."""

explain_arguments = arguments(
    "explain:run_explain",
    argument("line", "LINE", "an error, a log line or a traceback; - for standard input", nargs="?"),
    argument("--code", "CODE", "explain a code without asking a node"),
    argument("--subject", "KIND:NAME", "the subject, such as module:reports", type=a_subject),
    argument("--operation", None, "the operation", choices=OPERATIONS),
    argument("--target", "TARGET", "a URL, a host, a path or a program"),
    argument("--resource-type", None, "default: derived from the operation", choices=RESOURCE_TYPES),
    argument("--chain", "A,B", "call chain: the enclosing subjects, outermost first", default=""),
    flag("--install", "in the install phase of an engine or extractor"),
    argument("--session", "KEY", "in this session", default=""),
    argument("--user", "ID", "for this user", default=""),
    argument("--manifest", "FILE", "check against this manifest only, without asking a node"),
    flag("--offline", "explain a line without asking a node"),
    *NODE,
    description=_EXPLAIN,
)
