"""What ``democrai-sandbox status`` takes."""

from __future__ import annotations

from .common import add_node

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_DESCRIPTION = """\
Ask a node what it enforces now: every layer as it is measured, with what to do where it is less than it could be.
Ends with 1 when something that the configuration asks for is not well, and with 3 when no node answers."""


def add_to(parser: Parser) -> None:
    """Add what the command takes."""
    parser.description = _DESCRIPTION
    add_node(parser)
    parser.set_defaults(run="status:run")
