"""Arguments of ``democrai-sandbox audit``."""

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
_TAIL = "Show the last records, newest last."
_EXPORT = "Export records, oldest first, as JSON lines (which audit verify accepts) or as CSV."
_VERIFY = "Verify the hash chain from the first record to the last. Changes nothing."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("tail", help="show the last records", description=_TAIL, takes=_tail)
    verbs.add_parser("export", help="export records", description=_EXPORT, takes=_export)
    verbs.add_parser("verify", help="verify the hash chain", description=_VERIFY, takes=_verify)


def _tail(parser: Parser) -> None:
    parser.add_argument("-n", metavar="N", type=a_number, default=_USUAL, help=f"number of records (default: {_USUAL})")
    parser.add_argument("-f", "--follow", action="store_true", help="print new records until interrupted")
    add_filters(parser, *_FILTERS)
    add_node(parser)
    parser.set_defaults(run="audit:run_tail")


def _export(parser: Parser) -> None:
    parser.add_argument("--format", choices=("jsonl", "csv"), default="jsonl", help="default: jsonl")
    parser.add_argument(
        "--output", metavar="FILE", help="write to this file instead of standard output, completely or not at all"
    )
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
        help="read this database, or that of the configuration, instead of a node; for stopped nodes and backups",
    )
    source.add_argument("--export", metavar="FILE", help="verify a jsonl file written by audit export")
    add_node(parser)
    parser.set_defaults(run="verifying:run_verify")
