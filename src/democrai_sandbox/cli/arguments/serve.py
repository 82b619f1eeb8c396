"""What ``democrai-sandbox serve`` takes."""

from __future__ import annotations

from .words import LOG_FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser


def add_to(parser: Parser) -> None:
    """Add what the command takes."""
    parser.add_argument(
        "--config", metavar="FILE", help="a YAML file; DEMOCRAI_CONFIG_FILE names one too, and defaults do without"
    )
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        help="lines of the log on standard error: text (the default on a terminal) or json",
    )
    parser.set_defaults(run="serving:run")
