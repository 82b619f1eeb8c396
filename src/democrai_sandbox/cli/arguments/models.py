"""What ``democrai-sandbox models`` takes."""

from __future__ import annotations

from democrai_sandbox.cli.parsing import add_verbs

from .common import add_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_LIST = (
    "List models with the agents that name them. The exit status is 1 if an agent names one that is missing. "
    "Models are set in the configuration, under extensions.models."
)


def add_to(parser: Parser) -> None:
    """Add the verbs."""
    verbs = add_verbs(parser)
    verbs.add_parser("list", help="all models", description=_LIST, takes=_list)


def _list(parser: Parser) -> None:
    add_node(parser)
    parser.set_defaults(run="models:run_list")
