"""What ``democrai-sandbox audit`` takes."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node, add_yes
from .filters import add_filters
from .values import a_number

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_FILTERS = ("action", "actor", "subject", "request", "since", "until")
_USUAL = 20
_CONFIGURED = ""
_TAIL = "Show the last records, the newest last."
_EXPORT = "Write records out, the oldest first: as lines of JSON that can be verified, or as CSV."
_VERIFY = "Check the chain of hashes from the first record to the last, and change nothing."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("tail", help="what happened last", description=_TAIL, takes=_tail)
    verbs.add_parser("export", help="write the records out", description=_EXPORT, takes=_export)
    verbs.add_parser("verify", help="check the chain of hashes", description=_VERIFY, takes=_verify)


def _tail(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=a_number, default=_USUAL, help=f"so many; {_USUAL} if not given")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what happens, until it is interrupted")
    add_filters(parser, *_FILTERS)
    add_node(parser)
    parser.set_defaults(run="audit:run_tail")


def _export(parser: Parser) -> None:
    parser.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="jsonl if not given")
    parser.add_argument("--output", metavar="FILE", help="write here, all or nothing, instead of to standard output")
    add_yes(parser)
    add_filters(parser, *_FILTERS)
    add_node(parser)
    parser.set_defaults(run="exporting:run_export")


def _verify(parser: Parser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--database",
        metavar="URL",
        nargs="?",
        const=_CONFIGURED,
        help="ask no node but this database, or the one of the configuration: of a stopped node, or a restored copy",
    )
    source.add_argument("--export", metavar="FILE", help="check what audit export has written as jsonl")
    add_node(parser)
    parser.set_defaults(run="verifying:run_verify")
