"""Arguments of the commands about accesses: ``requests``, ``approvals``, ``audit``, ``shadow`` and ``explain``."""

from __future__ import annotations

from democrai_sandbox.cli.parser import add_verbs

from .choices import OPERATIONS, REQUEST_STATES, RESOURCE_TYPES, SCOPES
from .options import a_number, a_subject, a_text, add_filters, add_limit, add_node, add_yes, an_id, one_of, span

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from democrai_sandbox.cli.parser import CommandParser


_REQUEST_FILTERS = (
    *("subject", "kind", "resource_type", "operation", "user", "organization", "session", "text"),
    *("newer_than", "older_than"),
)
_LIST_REQUESTS = "List requests, most recently seen first."
_SHOW_REQUEST = "Show a request with the facts for a decision."
_APPROVE = "Approve requests: the access is allowed on every node until the approval ends or is revoked."
_DENY = "Deny requests: the access stays refused and files no new requests until the denial is revoked."


def requests_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="list requests", description=_LIST_REQUESTS, takes=_list_requests)
    verbs.add_parser("show", help="show a request", description=_SHOW_REQUEST, takes=_show_request)
    verbs.add_parser("approve", help="approve requests", description=_APPROVE, takes=_approve)
    verbs.add_parser("deny", help="deny requests", description=_DENY, takes=_deny)


def _list_requests(parser: CommandParser) -> None:
    words = "with this state; may be repeated (default: pending)"
    parser.add_argument("--state", action="append", **one_of(REQUEST_STATES, "STATE", words))
    parser.add_argument("--grouped", action="store_true", help="one row per access, highest risk first")
    add_filters(parser, *_REQUEST_FILTERS)
    add_limit(parser)
    add_node(parser)
    parser.set_defaults(run="requests:run_list")


def _show_request(parser: CommandParser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="id of the request")
    add_node(parser)
    parser.set_defaults(run="requests:run_show")


def _approve(parser: CommandParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", type=an_id, help="id of a request")
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--session", action="store_true", help="until the session of the request ends")
    scope.add_argument("--permanent", action="store_true", help="until it is revoked")
    scope.add_argument("--for", dest="lifetime", metavar="TIME", type=span, help="for this time, such as 2h or 7d")
    _add_verdict(parser, needs_reason=False)
    parser.set_defaults(run="requests:run_approve")


def _deny(parser: CommandParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", type=an_id, help="id of a request")
    _add_verdict(parser, needs_reason=True)
    parser.set_defaults(run="requests:run_deny")


def _add_verdict(parser: CommandParser, *, needs_reason: bool) -> None:
    parser.add_argument(
        "--target",
        metavar="TARGET",
        type=a_text,
        help="decide about this target instead; it must cover the requested one",
    )
    parser.add_argument(
        "--reason", metavar="TEXT", type=a_text, required=needs_reason, help="reason, kept in the audit log"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the result for each request, and change nothing")
    add_yes(parser)
    add_node(parser)


_DECISION_FILTERS = ("subject", "resource_type", "operation", "session", "text")
_LIST_DECISIONS = "List approvals or denials, newest first."
_REVOKE_DECISIONS = "Revoke approvals or denials on every node. Their targets are undecided afterwards."


def approvals_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="list approvals or denials", description=_LIST_DECISIONS, takes=_list_decisions)
    verbs.add_parser(
        "revoke", help="revoke approvals or denials", description=_REVOKE_DECISIONS, takes=_revoke_decisions
    )


def _list_decisions(parser: CommandParser) -> None:
    parser.add_argument(
        "--state", choices=("live", "ended", "any"), default="live", help="in force, ended, or both (default: live)"
    )
    add_limit(parser)
    _add_choice(parser)
    parser.set_defaults(run="requests:run_list_decisions")


def _revoke_decisions(parser: CommandParser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", type=an_id, help="id of an approval or denial; or use filters")
    parser.add_argument("--reason", metavar="TEXT", type=a_text, help="reason, kept in the audit log")
    parser.add_argument("--dry-run", action="store_true", help="show what would be revoked, and change nothing")
    add_yes(parser)
    _add_choice(parser)
    parser.set_defaults(run="requests:run_revoke")


def _add_choice(parser: CommandParser) -> None:
    parser.add_argument("--denials", action="store_true", help="denials instead of approvals")
    parser.add_argument("--scope", **one_of(SCOPES, "SCOPE", "with this scope"))
    add_filters(parser, *_DECISION_FILTERS)
    add_node(parser)


_AUDIT_FILTERS = ("action", "actor", "subject", "request", "since", "until")
_USUAL_RECORDS = 20
_CONFIGURED_DATABASE = ""
_TAIL = "Show the last records, newest last."
_EXPORT = "Export records, oldest first, as JSON lines (which audit verify accepts) or as CSV."
_VERIFY = "Verify the hash chain from the first record to the last. Changes nothing."


def audit_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("tail", help="show the last records", description=_TAIL, takes=_tail)
    verbs.add_parser("export", help="export records", description=_EXPORT, takes=_export)
    verbs.add_parser("verify", help="verify the hash chain", description=_VERIFY, takes=_verify)


def _tail(parser: CommandParser) -> None:
    parser.add_argument(
        "-n", metavar="N", type=a_number, default=_USUAL_RECORDS, help=f"number of records (default: {_USUAL_RECORDS})"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="print new records until interrupted")
    add_filters(parser, *_AUDIT_FILTERS)
    add_node(parser)
    parser.set_defaults(run="audit:run_tail")


def _export(parser: CommandParser) -> None:
    parser.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="default: jsonl")
    parser.add_argument(
        "--output", metavar="FILE", help="write to this file instead of standard output, completely or not at all"
    )
    add_yes(parser)
    add_filters(parser, *_AUDIT_FILTERS)
    add_node(parser)
    parser.set_defaults(run="audit:run_export")


def _verify(parser: CommandParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--database",
        metavar="URL",
        nargs="?",
        const=_CONFIGURED_DATABASE,
        help="read this database, or that of the configuration, instead of a node; for stopped nodes and backups",
    )
    source.add_argument("--export", metavar="FILE", help="verify a jsonl file written by audit export")
    add_node(parser)
    parser.set_defaults(run="audit:run_verify")


_START_SHADOW = (
    "Start a shadow run on all nodes: compare a candidate manifest with the current one. The current one decides."
)
_LIST_SHADOWS = "List shadow runs, active ones first."
_SHOW_SHADOW = (
    "Show the accesses that the candidate would newly deny or allow. The exit status is 1 if it would deny one."
)
_STOP_SHADOW = "Stop a shadow run on all nodes. Its findings are kept."


def shadow_arguments(parser: CommandParser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("start", help="start a shadow run", description=_START_SHADOW, takes=_start_shadow)
    verbs.add_parser("list", help="list shadow runs", description=_LIST_SHADOWS, takes=add_node, run="shadow:run_list")
    verbs.add_parser("show", help="show the findings", description=_SHOW_SHADOW, takes=_show_shadow)
    verbs.add_parser("stop", help="stop a shadow run", description=_STOP_SHADOW, takes=_stop_shadow)


def _start_shadow(parser: CommandParser) -> None:
    parser.add_argument("--subject", metavar="KIND:NAME", type=a_subject, required=True, help="such as module:reports")
    parser.add_argument(
        "--manifest", metavar="FILE", required=True, help="the candidate; its name must be that of the subject"
    )
    parser.add_argument("--dry-run", action="store_true", help="only check the candidate")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="shadow:run_start")


def _show_shadow(parser: CommandParser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="id of the shadow run")
    add_node(parser)
    parser.set_defaults(run="shadow:run_show")


def _stop_shadow(parser: CommandParser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="id of the shadow run")
    parser.add_argument("--dry-run", action="store_true", help="show what would be stopped, and change nothing")
    add_yes(parser)
    add_node(parser)
    parser.set_defaults(run="shadow:run_stop")


_EXPLAIN = """\
Explain an error line and the current state, or predict an access of a subject: the layer and rule that decide, and the
declaration or approval that would change it. Changes nothing.

  explain 'sandbox_filesystem_denied:reports:/etc/passwd'      a line; - reads it from standard input
  explain --code sandbox_network_denied                        a code
  explain --subject module:reports --operation receive --target https://api.example.com/v1

If no node answers, a line is explained from the error catalog alone."""


def explain_arguments(parser: CommandParser) -> None:
    """Add the arguments."""
    parser.description = _EXPLAIN
    parser.add_argument(
        "line", metavar="LINE", nargs="?", help="an error, a log line or a traceback; - for standard input"
    )
    parser.add_argument("--code", metavar="CODE", help="explain a code without asking a node")
    parser.add_argument("--subject", metavar="KIND:NAME", type=a_subject, help="the subject, such as module:reports")
    parser.add_argument("--operation", choices=OPERATIONS, help="the operation")
    parser.add_argument("--target", metavar="TARGET", help="a URL, a host, a path or a program")
    parser.add_argument("--resource-type", choices=RESOURCE_TYPES, help="default: derived from the operation")
    parser.add_argument(
        "--chain", metavar="A,B", default="", help="call chain: the enclosing subjects, outermost first"
    )
    parser.add_argument("--install", action="store_true", help="in the install phase of an engine or extractor")
    parser.add_argument("--session", metavar="KEY", default="", help="in this session")
    parser.add_argument("--user", metavar="ID", default="", help="for this user")
    parser.add_argument("--manifest", metavar="FILE", help="check against this manifest only, without asking a node")
    parser.add_argument("--offline", action="store_true", help="explain a line without asking a node")
    add_node(parser)
    parser.set_defaults(run="explain:run_explain")
