"""Arguments of ``democrai-sandbox doctor``."""

from __future__ import annotations

from .common import add_config, add_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

_DESCRIPTION = """\
Test what this machine and this configuration can enforce, in temporary processes, and print a fix for every failed
check. Changes nothing and does not need root; checks that need root are marked. The exit status is 1 if the
configuration enables a control that does not work."""


def add_to(parser: Parser) -> None:
    """Add the arguments."""
    parser.description = _DESCRIPTION
    add_config(parser)
    parser.add_argument(
        "--egress",
        action="store_true",
        help="also start the helper, and test an empty allowlist on a temporary process",
    )
    parser.add_argument("--attempts", action="store_true", help="list every forbidden operation that was tested")
    add_json(parser)
    parser.set_defaults(run="doctor:run")
