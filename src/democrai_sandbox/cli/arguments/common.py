"""Options that many commands share: configuration, node, database and output format."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from democrai_sandbox.cli.parsing import Parser

URL_VARIABLE = "DEMOCRAI_URL"
TOKEN_VARIABLE = "DEMOCRAI_TOKEN"  # noqa: S105 - a name, not a secret
TOKEN_FILE = "cli.token"  # noqa: S105 - a name, not a secret
"""File in the state folder, written by ``admin token create --save``."""


def add_config(parser: Parser) -> None:
    """Add ``--config``."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: DEMOCRAI_CONFIG_FILE)")


def add_json(parser: Parser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_yes(parser: Parser) -> None:
    """Add ``--yes``."""
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation; required without a terminal")


def add_node(parser: Parser) -> None:
    """Add the options for the node and the token, and ``--json``."""
    add_config(parser)
    parser.add_argument(
        "--url", metavar="URL", help=f"address of the node (default: {URL_VARIABLE}, then the configuration)"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"file with a token (default: {TOKEN_VARIABLE}, then {TOKEN_FILE} in the state folder)",
    )
    add_json(parser)


def add_database(parser: Parser) -> None:
    """Add the options for the database, and ``--json``."""
    add_config(parser)
    parser.add_argument(
        "--database",
        metavar="URL",
        help="database to use: sqlite:////path/to/file or postgresql://user@host/name, without a password",
    )
    add_json(parser)
