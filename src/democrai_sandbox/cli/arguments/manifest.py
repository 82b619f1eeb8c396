"""Arguments of ``democrai-sandbox manifest``."""

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
        help="list every problem with its line",
        description="Check manifests as the runtime does, and list every problem. Changes nothing.",
        takes=_add_places,
        run="manifest:run_check",
    )
    verbs.add_parser(
        "lint",
        help="warn about overly broad declarations",
        description="Warn about declarations that are broader than likely needed. Changes nothing.",
        takes=_lint,
    )
    verbs.add_parser(
        "diff",
        help="list the rights that a new version adds and removes",
        description="List the rights that a new version of a manifest adds and removes.",
        takes=_diff,
    )
    verbs.add_parser(
        "schema",
        help="print or write the JSON Schema of manifests",
        description="Print the JSON Schema (draft 2020-12) of a kind of manifest, for editors.",
        takes=_schema,
    )


def _lint(parser: Parser) -> None:
    _add_places(parser)
    parser.add_argument("--strict", action="store_true", help="exit with status 1 if there is a warning")
    parser.set_defaults(run="manifest:run_lint")


def _diff(parser: Parser) -> None:
    parser.add_argument("old", metavar="OLD", help="a manifest, or the folder with it")
    parser.add_argument("new", metavar="NEW", help="the new version")
    _add_kind(parser)
    parser.add_argument("--exit-code", action="store_true", help="exit with status 1 if rights were added")
    add_json(parser)
    parser.set_defaults(run="manifest:run_diff")


def _schema(parser: Parser) -> None:
    parser.add_argument("kind", nargs="?", choices=MANIFEST_KINDS, metavar="KIND", help=", ".join(MANIFEST_KINDS))
    parser.add_argument(
        "--output", metavar="FOLDER", help="write KIND.schema.json into this folder; all kinds if KIND is omitted"
    )
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
        help=f"kind of the manifest ({', '.join(MANIFEST_KINDS)}), if neither $schema nor the folder says so",
    )
