"""What ``democrai-sandbox approvals`` takes."""

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
_LIST = "List approvals or denials, the newest first."
_REVOKE = "Take approvals or denials back: what they are about is undecided again, on every node."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="what was approved", description=_LIST, takes=_list)
    verbs.add_parser("revoke", help="take approvals or denials back", description=_REVOKE, takes=_revoke)


def _list(parser: Parser) -> None:
    parser.add_argument(
        "--state", choices=("live", "ended", "any"), default="live", help="in force, over, or both; live if not given"
    )
    add_limit(parser)
    _add_choice(parser)
    parser.set_defaults(run="approvals:run_list")


def _revoke(parser: Parser) -> None:
    parser.add_argument("ids", metavar="ID", nargs="*", type=an_id, help="of an approval or a denial; or use filters")
    parser.add_argument("--reason", metavar="TEXT", type=a_text, help="why; the audit keeps it")
    parser.add_argument("--dry-run", action="store_true", help="only say which would be revoked")
    add_yes(parser)
    _add_choice(parser)
    parser.set_defaults(run="approvals:run_revoke")


def _add_choice(parser: Parser) -> None:
    parser.add_argument("--denials", action="store_true", help="denials instead of approvals")
    parser.add_argument("--scope", **one_of(SCOPES, "SCOPE", "that reach so far"))
    add_filters(parser, *_FILTERS)
    add_node(parser)
