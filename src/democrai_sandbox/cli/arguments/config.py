"""Arguments of ``democrai-sandbox config``."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_config, add_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_SHOW = "Print every value of the configuration, with passwords hidden. Changes nothing."
_CHECK = "Check the configuration as serve does, and list every problem. Changes nothing."


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("show", help="print every value", description=_SHOW, takes=_show)
    verbs.add_parser("check", help="list every problem", description=_CHECK, takes=_check)


def _show(parser: Parser) -> None:
    parser.add_argument(
        "--origin", action="store_true", help="show the origin of each value: file and line, or variable"
    )
    parser.add_argument("--given", action="store_true", help="omit default values")
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="config:run_show")


def _check(parser: Parser) -> None:
    add_config(parser)
    add_json(parser)
    parser.set_defaults(run="config:run_check")
