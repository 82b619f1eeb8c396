"""Arguments of ``democrai-sandbox approvals``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .filters import add_filters, add_limit, one_of
from .values import a_text, an_id
from .words import SCOPES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_FILTERS = ("subject", "resource_type", "operation", "session", "text")
_LIST = "List approvals or denials, newest first."
_REVOKE = "Revoke approvals or denials on every node. Their targets are undecided afterwards."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="list approvals or denials", description=_LIST, takes=_list)
    verbs.add_parser("revoke", help="revoke approvals or denials", description=_REVOKE, takes=_revoke)


def _list(parser: Parser) -> None:
    parser.add_argument(
        "--state", choices=("live", "ended", "any"), default="live", help="in force, ended, or both (default: live)"
    )
    add_limit(parser)
    _add_choice(parser)
    parser.set_defaults(run="approvals:run_list")


def _revoke(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", type=an_id, help="id of an approval or denial; or use filters")
    parser.add_argument("--reason", metavar="TEXT", type=a_text, help="reason, kept in the audit log")
    parser.add_argument("--dry-run", action="store_true", help="show what would be revoked, and change nothing")
    add_yes(parser)
    _add_choice(parser)
    parser.set_defaults(run="approvals:run_revoke")


def _add_choice(parser: Parser) -> None:
    parser.add_argument("--denials", action="store_true", help="denials instead of approvals")
    parser.add_argument("--scope", **one_of(SCOPES, "SCOPE", "with this scope"))
    add_filters(parser, *_FILTERS)
    add_node(parser)
