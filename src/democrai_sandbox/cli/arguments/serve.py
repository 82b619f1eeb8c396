"""Arguments of ``democrai-sandbox serve``."""

from __future__ import annotations

from .words import LOG_FORMATS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser


def add_to(parser: Parser) -> None:
    """Add the arguments."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: DEMOCRAI_CONFIG_FILE; optional)")
    parser.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        help="log format on standard error: text (default on a terminal) or json",
    )
    parser.set_defaults(run="serving:run")
