"""Arguments of ``democrai-sandbox requests``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .filters import add_filters, add_limit, one_of
from .values import a_text, an_id, span
from .words import REQUEST_STATES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_FILTERS = (
    *("subject", "kind", "resource_type", "operation", "user", "organization", "session", "text"),
    *("newer_than", "older_than"),
)
_LIST = "List requests, most recently seen first."
_SHOW = "Show a request with the facts for a decision."
_APPROVE = "Approve requests: the access is allowed on every node until the approval ends or is revoked."
_DENY = "Deny requests: the access stays refused and files no new requests until the denial is revoked."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="list requests", description=_LIST, takes=_list)
    verbs.add_parser("show", help="show a request", description=_SHOW, takes=_show)
    verbs.add_parser("approve", help="approve requests", description=_APPROVE, takes=_approve)
    verbs.add_parser("deny", help="deny requests", description=_DENY, takes=_deny)


def _list(parser: Parser) -> None:
    words = "with this state; may be repeated (default: pending)"
    parser.add_argument("--state", action="append", **one_of(REQUEST_STATES, "STATE", words))
    parser.add_argument("--grouped", action="store_true", help="one row per access, highest risk first")
    add_filters(parser, *_FILTERS)
    add_limit(parser)
    add_node(parser)
    parser.set_defaults(run="requests:run_list")


def _show(parser: Parser) -> None:
    parser.add_argument("id", metavar="ID", type=an_id, help="id of the request")
    add_node(parser)
    parser.set_defaults(run="requests:run_show")


def _approve(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", type=an_id, help="id of a request")
    scope = parser.add_mutually_exclusive_group(required=True)
    scope.add_argument("--session", action="store_true", help="until the session of the request ends")
    scope.add_argument("--permanent", action="store_true", help="until it is revoked")
    scope.add_argument("--for", dest="lifetime", metavar="TIME", type=span, help="for this time, such as 2h or 7d")
    _add_verdict(parser, needs_reason=False)
    parser.set_defaults(run="deciding:run_approve")


def _deny(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="+", type=an_id, help="id of a request")
    _add_verdict(parser, needs_reason=True)
    parser.set_defaults(run="deciding:run_deny")


def _add_verdict(parser: Parser, *, needs_reason: bool) -> None:
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
