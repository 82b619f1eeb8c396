"""What ``democrai-sandbox doctor`` takes."""

from __future__ import annotations

from .common import add_config, add_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_DESCRIPTION = """\
Try what this machine and this configuration can enforce, in processes that are there for nothing else, and say of each
line what to do where it is less than it could be. Changes nothing and needs no root; what only root can have is said.
Ends with 1 when something that the configuration asks for is not possible."""


def add_to(parser: Parser) -> None:
    """Add what the command takes."""
    parser.description = _DESCRIPTION
    add_config(parser)
    parser.add_argument(
        "--egress",
        action="store_true",
        help="start the helper too, and put a throw-away process under an empty allowlist for a moment",
    )
    parser.add_argument("--attempts", action="store_true", help="list every forbidden act that was tried")
    add_json(parser)
    parser.set_defaults(run="doctor:run")
