"""What ``democrai-sandbox manifest`` takes."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_json
from .words import MANIFEST_KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser(
        "check",
        help="say everything that is wrong, with its line",
        description="Read manifests as the sandbox does, and say everything that is wrong with them. Changes nothing.",
        takes=_add_places,
        run="manifest:run_check",
    )
    verbs.add_parser(
        "lint",
        help="point out what gives more than is likely to be needed",
        description="Point out what in manifests gives more than is likely to be needed. Changes nothing.",
        takes=_lint,
    )
    verbs.add_parser(
        "diff",
        help="list the power that a new version adds and drops",
        description="List what a new version of a manifest may do that the old one may not, and the reverse.",
        takes=_diff,
    )
    verbs.add_parser(
        "schema",
        help="print the JSON Schema of a kind, or write those of all kinds",
        description="Print the JSON Schema (draft 2020-12) of a kind of manifest, for editors.",
        takes=_schema,
    )


def _lint(parser: Parser) -> None:
    _add_places(parser)
    parser.add_argument("--strict", action="store_true", help="end with 1 when there is a warning")
    parser.set_defaults(run="manifest:run_lint")


def _diff(parser: Parser) -> None:
    parser.add_argument("old", metavar="OLD", help="a manifest, or the folder with it")
    parser.add_argument("new", metavar="NEW", help="the other version")
    _add_kind(parser)
    parser.add_argument("--exit-code", action="store_true", help="end with 1 when power was added")
    add_json(parser)
    parser.set_defaults(run="manifest:run_diff")


def _schema(parser: Parser) -> None:
    parser.add_argument("kind", nargs="?", choices=MANIFEST_KINDS, metavar="KIND", help=", ".join(MANIFEST_KINDS))
    parser.add_argument("--output", metavar="FOLDER", help="write KIND.schema.json into it, for all kinds without KIND")
    add_json(parser)
    parser.set_defaults(run="manifest:run_schema")


def _add_places(parser: Parser) -> None:
    parser.add_argument("places", nargs="+", metavar="PATH", help="a manifest, or a folder with extensions")
    _add_kind(parser)
    add_json(parser)


def _add_kind(parser: Parser) -> None:
    parser.add_argument(
        "--kind",
        choices=MANIFEST_KINDS,
        metavar="KIND",
        help=f"what it is ({', '.join(MANIFEST_KINDS)}), where neither its $schema nor its folder says so",
    )
