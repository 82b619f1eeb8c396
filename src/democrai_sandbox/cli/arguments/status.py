"""Arguments of ``democrai-sandbox status``."""

from __future__ import annotations

from .common import add_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_DESCRIPTION = """\
Show what a node enforces now: the measured state of every layer, with a fix for each problem.
The exit status is 1 if a control that the configuration enables does not work, and 3 if no node answers."""


def add_to(parser: Parser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    add_node(parser)
    parser.set_defaults(run="status:run")
